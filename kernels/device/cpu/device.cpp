#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <string_view>

#include <sherd/kernels/device/cpu/features.h>
#include <sherd/kernels/device/detail/queue_stream.h>
#include <sherd/kernels/device/file_memory.h>

namespace sherd {
namespace {

/// @throws NotSupported when the kernels were compiled for a newer processor than this one.
void check_processor() {
#ifdef SHERD_CPU_ARCH
  const std::string_view arch = SHERD_CPU_ARCH;
  const bool v3 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool v4 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if ((arch == "x86-64-v3" && !v3) || (arch == "x86-64-v4" && !(v3 && v4))) {
    throw NotSupported(
        "the cpu kernels were compiled for " SHERD_CPU_ARCH
        " and this processor lacks some of its instructions; configure with -DSHERD_CPU_ARCH=native "
        "(or =x86-64), or choose the 'reference' kernels");
  }
#endif
}

/// A source's memory, used by the work of a device.
class WorkMemory final : public MemorySource {
 public:
  WorkMemory(std::unique_ptr<MemorySource> source, const RunAhead& run_ahead, std::function<void()> drain)
      : run_ahead_(run_ahead), drain_(std::move(drain)), source_(std::move(source)) {}
  void* allocate(int64_t bytes) override { return source_->allocate(bytes); }
  void release(void* p, int64_t bytes) noexcept override { source_->release(p, bytes); }
  int64_t queued() const override { return run_ahead_.queued(); }
  int64_t done() const override { return run_ahead_.done(); }
  void drain() override { drain_(); }
  std::string owner() const override { return source_->owner(); }

 private:
  const RunAhead& run_ahead_;
  const std::function<void()> drain_;
  const std::unique_ptr<MemorySource> source_;
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const DeviceOptions& o)
      : Device(o),
        options_(o),
        allocator_(o.label, o.memory_limit, memory()),
        copies_(o.label + " (copies from the host)", 0, memory()),
        tier_(o.label + " (host tier)", 0, tier_source()) {
    if (o.kernels == KernelSet::cpu) {
      check_processor();
      (void)cpu::features();  // before oneDNN's first product
    }
    compute_ = std::make_unique<QueueStream>(*this, "compute", o.threads);
  }

  int threads() const override { return options_.threads; }
  Allocator& allocator() override { return allocator_; }
  Allocator& copies() override { return copies_; }
  Allocator& host_tier() override { return tier_; }
  FileMemory* tier_file() override { return file_; }
  KernelSet kernel_set() const override { return options_.kernels; }
  Stream& compute() override { return *compute_; }
  void use_callers_team() override {
    threads_of_streams_ = 1;
    compute_->run_on_callers();
  }
  std::unique_ptr<Stream> make_stream(std::string name, StreamPriority) override {
    return std::make_unique<QueueStream>(*this, std::move(name), threads_of_streams_);
  }
  const std::string& label() const override { return options_.label; }
  std::string describe() const override {
    const std::string instructions =
        options_.kernels == KernelSet::cpu ? ", " + cpu::describe(cpu::features()) : std::string();
    return fmt::format("cpu, {} thread{}, kernels {}{}", options_.threads, options_.threads == 1 ? "" : "s",
                       name_of(options_.kernels), instructions);
  }

 private:
  std::unique_ptr<MemorySource> memory(std::unique_ptr<MemorySource> source = host_memory()) {
    return std::make_unique<WorkMemory>(std::move(source), run_ahead(), [this] { compute_->synchronize(); });
  }

  std::unique_ptr<MemorySource> tier_source() {
    if (options_.offload_folder.empty()) return memory();
    auto file = std::make_unique<FileMemory>(options_.offload_folder);
    file_ = file.get();
    return memory(std::move(file));
  }

  DeviceOptions options_;
  FileMemory* file_ = nullptr;  // owned by tier_
  std::atomic<int> threads_of_streams_{options_.threads};
  Allocator allocator_, copies_, tier_;
  std::unique_ptr<QueueStream> compute_;  // after the allocators: what it holds goes back first
};

}  // namespace

std::shared_ptr<Device> make_cpu_device(const DeviceOptions& options) {
  if (options.threads < 0)
    throw InvalidArgument(
        fmt::format("{}: {} kernel threads; use at least 1, or 0 for one", options.label, options.threads));
  DeviceOptions o = options;
  o.threads = std::max(1, o.threads);
  return std::make_shared<CpuDevice>(o);
}

}  // namespace sherd
