#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

#include <sherd/kernels/device/detail/queue_stream.h>
#include <sherd/kernels/device/hardware.h>

#include "cudnn_library.h"
#include "queue.h"

namespace sherd {
namespace {

using cuda::check;
using cuda::Chip;

class DeviceMemory final : public MemorySource {
 public:
  DeviceMemory(int ordinal, const RunAhead& run_ahead, std::function<void()> drain)
      : ordinal_(ordinal), run_ahead_(run_ahead), drain_(std::move(drain)) {}
  void* allocate(int64_t bytes) override {
    check(cudaSetDevice(ordinal_), "device memory");
    void* p = nullptr;
    const cudaError_t result = cudaMalloc(&p, static_cast<size_t>(bytes));
    if (result == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    check(result, "device memory");
    return p;
  }
  void release(void* p, int64_t) noexcept override {
    cudaSetDevice(ordinal_);
    cudaFree(p);
  }
  int64_t queued() const override { return run_ahead_.queued(); }
  int64_t done() const override { return run_ahead_.done(); }
  void drain() override { drain_(); }
  std::string owner() const override { return fmt::format("GPU {}", ordinal_); }

 private:
  int ordinal_;
  const RunAhead& run_ahead_;
  std::function<void()> drain_;
};

class PinnedMemory final : public MemorySource {
 public:
  PinnedMemory(int ordinal, const RunAhead& run_ahead, std::function<void()> drain)
      : ordinal_(ordinal), run_ahead_(run_ahead), drain_(std::move(drain)) {}
  void* allocate(int64_t bytes) override {
    check(cudaSetDevice(ordinal_), "pinned memory");
    void* p = nullptr;
    const cudaError_t result = cudaHostAlloc(&p, static_cast<size_t>(bytes), cudaHostAllocPortable);
    if (result == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    check(result, "pinned memory");
    return p;
  }
  void release(void* p, int64_t) noexcept override {
    cudaSetDevice(ordinal_);  // a thread without a device would open a context on GPU 0
    cudaFreeHost(p);
  }
  int64_t queued() const override { return run_ahead_.queued(); }
  int64_t done() const override { return run_ahead_.done(); }
  void drain() override { drain_(); }
  std::string owner() const override { return "the system (pinned memory)"; }

 private:
  int ordinal_;
  const RunAhead& run_ahead_;
  std::function<void()> drain_;
};

/// Streams beyond the number of the device's queues share one and wait for each other's work, where a
/// collective may wait for what is queued behind it. CUDA has 8 unless this is set before its first call.
void ask_for_queues() {
  constexpr const char* kName = "CUDA_DEVICE_MAX_CONNECTIONS";
  constexpr long kEnough = 16;
  setenv(kName, "32", 0);
  const char* const value = std::getenv(kName);
  if (value && std::strtol(value, nullptr, 10) < kEnough)
    std::fprintf(stderr,
                 "sherd: warning: %s is %s, and streams that share a queue may wait for each other for ever; "
                 "unset it, or give %ld to 32\n",
                 kName, value, kEnough);
}

constexpr int kHopper = 90;

/// Returns blocks or hopper.
SymmetricProducts symmetric_of(const DeviceOptions& o, int capability) {
  if (o.symmetric_products == SymmetricProducts::hopper && capability != kHopper)
    fmt::print(
        stderr,
        "sherd: warning: {}: symmetric_products \"hopper\" needs compute capability 9.0, this GPU has {}.{}; "
        "\"blocks\" is used\n",
        o.label, capability / 10, capability % 10);
  return o.symmetric_products != SymmetricProducts::blocks && capability == kHopper
             ? SymmetricProducts::hopper
             : SymmetricProducts::blocks;
}

std::string version_of_cudnn(int64_t version) {
  return fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

/// Returns the option; own in place of automatic where cuDNN does not start.
AttentionMethod attention_of(const DeviceOptions& o) {
  if (o.attention == AttentionMethod::own) return AttentionMethod::own;
  const cuda::CudnnLibrary library = cuda::cudnn_library();
  std::string problem = library.problem;
  if (library.version != 0 && library.version < cuda::kOldestCudnn)
    problem = fmt::format("{} is too old; install 9.0.0 or newer", version_of_cudnn(library.version));
  if (problem.empty()) return o.attention;
  if (o.attention == AttentionMethod::automatic) return AttentionMethod::own;
  throw NotSupported(fmt::format("{}: attention \"cudnn\": {}", o.label, problem));
}

std::string why_none() {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const auto words = [](int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); };
  if (driver == 0 || driver / 1000 >= runtime / 1000) return "no GPU, or no driver";
  return fmt::format("the driver is for CUDA {}, this program needs {}", words(driver), words(runtime));
}

Chip chip_of(const DeviceOptions& o) {
  const int count = cuda_device_count();
  if (count == 0)
    throw CudaError(
        fmt::format("{}: no CUDA device on this machine ({}); use the cpu device", o.label, why_none()));
  if (o.ordinal < 0 || o.ordinal >= count)
    throw InvalidArgument(
        fmt::format("{}: CUDA device {} of {}; use 0 to {}", o.label, o.ordinal, count, count - 1));
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, which, o.ordinal), "device attributes");
    return value;
  };
  Chip chip{.ordinal = o.ordinal,
            .multiprocessors = attribute(cudaDevAttrMultiProcessorCount),
            .capability = attribute(cudaDevAttrComputeCapabilityMajor) * 10 +
                          attribute(cudaDevAttrComputeCapabilityMinor),
            .tf32 = o.tf32,
            .shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
            .attention = attention_of(o)};
  chip.symmetric = symmetric_of(o, chip.capability);
  return chip;
}

/// Lets kernels on `from` read what is on `to`. False where the machine cannot.
bool enable_peer(int from, int to) {
  int possible = 0;
  check(cudaDeviceCanAccessPeer(&possible, from, to), "peer access");
  if (!possible) return false;
  check(cudaSetDevice(from), "peer access");
  const cudaError_t result = cudaDeviceEnablePeerAccess(to, 0);
  if (result == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
    return true;
  }
  check(result, "peer access");
  return true;
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const DeviceOptions& o)
      : Device(o),
        label_(o.label),
        chip_(chip_of(o)),
        clock_(o.ordinal),
        allocator_(
            o.label, o.memory_limit,
            std::make_unique<DeviceMemory>(o.ordinal, run_ahead(), [this] { compute_->synchronize(); })),
        staging_(o.label + " (pinned)", 0, pinned()),
        tier_(o.label + " (host tier)", 0, pinned()) {
    cuda::cublasLtCreate.load();
    compute_ = make_stream("compute", StreamPriority::normal);
  }

  DeviceKind kind() const override { return DeviceKind::cuda; }
  int ordinal() const override { return chip_.ordinal; }
  bool reaches(const Device& other) const override {
    if (other.kind() != DeviceKind::cuda) return false;
    const int theirs = static_cast<const CudaDevice&>(other).chip_.ordinal;
    return theirs == chip_.ordinal || enable_peer(chip_.ordinal, theirs);
  }
  Allocator& allocator() override { return allocator_; }
  Allocator& staging() override { return staging_; }
  Allocator& host_tier() override { return tier_; }
  int64_t total_memory() const override {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, chip_.ordinal), "device properties");
    return static_cast<int64_t>(properties.totalGlobalMem);
  }
  int64_t taken_memory() const override {
    size_t available = 0, total = 0;
    check(cudaSetDevice(chip_.ordinal), "device memory");
    check(cudaMemGetInfo(&available, &total), "device memory");
    return static_cast<int64_t>(total - available);
  }
  KernelSet kernel_set() const override { return KernelSet::cuda; }
  Stream& compute() override { return *compute_; }
  std::unique_ptr<Stream> make_stream(std::string name, StreamPriority priority) override {
    return std::make_unique<QueueStream>(
        *this, std::move(name), 1, std::make_unique<cuda::CudaQueue>(chip_, allocator_, clock_, priority));
  }
  const std::string& label() const override { return label_; }
  std::string describe() const override {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, chip_.ordinal), "device properties");
    return fmt::format("{} (GPU {}){}{}", properties.name, chip_.ordinal, chip_.tf32 ? ", tf32" : "",
                       chip_.attention == AttentionMethod::own
                           ? ""
                           : ", attention by " + version_of_cudnn(cuda::cudnn_library().version));
  }

 private:
  std::unique_ptr<MemorySource> pinned() {
    return std::make_unique<PinnedMemory>(chip_.ordinal, run_ahead(), [this] { compute_->synchronize(); });
  }

  const std::string label_;
  const Chip chip_;
  cuda::EventClock clock_;
  Allocator allocator_, staging_, tier_;
  std::unique_ptr<Stream> compute_;  // after the allocators: what it holds goes back first
};

}  // namespace

int cuda_device_count() {
  static std::once_flag asked;
  std::call_once(asked, ask_for_queues);
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaErrorNoDevice || result == cudaErrorInsufficientDriver) {
    cudaGetLastError();
    return 0;
  }
  check(result, "cudaGetDeviceCount");
  return count;
}

std::string cuda_pci_address(int ordinal) {
  char address[32] = "";
  if (cudaDeviceGetPCIBusId(address, sizeof address, ordinal) != cudaSuccess) cudaGetLastError();
  return address;
}

Hardware hardware_of(const Device& device) {
  if (device.kind() != DeviceKind::cuda || device.dry()) return {};
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device.ordinal()), "device properties");
  return {properties.name, std::string(properties.uuid.bytes, sizeof properties.uuid.bytes)};
}

std::shared_ptr<Device> make_cuda_device(const DeviceOptions& options) {
  return std::make_shared<CudaDevice>(options);
}

}  // namespace sherd
