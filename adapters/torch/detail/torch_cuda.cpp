// Order of libtorch's and sherd's operations on a GPU. Compiled, never run on a GPU.
//
// sherd's compute stream is a worker thread that issues to its own CUDA stream. libtorch's operations of a
// call run in that CUDA stream too, which every thread may issue to. The order of issue must be right:
// - join() waits until the worker has issued its queue. Later operations of libtorch are ordered after it.
// - Operations that sherd queues after that are issued after libtorch's, which were issued when they returned.
//   Events that the worker records for other streams cover them.
// - Events at both ends of a call order the work of a program in its own current stream outside of calls.
//
// Backward runs on one thread of autograd for each GPU. The engine runs each function under the stream that
// was current when its forward was recorded. It makes streams wait for each other where gradients pass
// between them. Functions of a call are recorded in an OnCompute. So their backward is in the compute stream,
// between the same two functions (detail/calls.h) as on a CPU.
// Where the engine chooses another stream for these two, before_compute() and after_compute() order it by
// events; these cost nothing where the streams are one. Not verified without a GPU: that no version of
// libtorch runs an inner function of a call in a stream unknown to both functions.
#include <ATen/Context.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <random>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <sherd/comm/core/require_equal.h>
#include <sherd/kernels/copy/copy.h>
#include <sherd/torch/detail/torch_device.h>
#include <sherd/torch/device.h>

namespace sherd::torch::detail {
namespace {

using c10::cuda::CUDAStream;

/// Blocks until the worker of the compute stream has issued all that was queued, and returns the CUDA stream.
void* issued(Stream& compute) {
  auto promise = std::make_shared<std::promise<void*>>();
  std::future<void*> handle = promise->get_future();
  compute.submit("libtorch", [promise](ExecutionContext& context) { promise->set_value(context.native); });
  promise.reset();  // a failed stream drops the work, and with it the last of these
  try {
    return handle.get();
  } catch (const std::future_error&) {
    compute.synchronize();  // throws the stream's error
    throw CudaError("sherd::torch: the compute stream takes no more work");
  }
}

/// Makes `later` wait, on the device, for the work given to `earlier` so far.
void put_in_order(const CUDAStream& earlier, const CUDAStream& later) {
  if (earlier == later) return;
  c10::Event event(c10::DeviceType::CUDA);
  event.record(earlier.unwrap());
  event.block(later.unwrap());
}

/// Keeps the memory of `tensor` from reuse until `stream` has done its work so far. The allocator handles its
/// own memory only, and ignores memory of others (sherd's).
void record_use(const at::Tensor& tensor, const CUDAStream& stream) {
  if (!tensor.is_cuda()) return;
  // Tensor::record_stream() is not used: autograd would record it as a write to the tensor.
  const auto record = [&](const at::Tensor& dense) {
    c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA)
        .recordDataPtrOnStream(dense.storage().data_ptr(), stream.unwrap());
  };
  if (tensor.layout() == at::kStrided) {
    record(tensor);
  } else if (tensor.is_sparse()) {
    record(tensor._indices());
    record(tensor._values());
  }
}

class OnCudaStream final : public TorchDevice::OnCompute {
 public:
  explicit OnCudaStream(const CUDAStream& compute)
      : compute_(compute),
        around_(c10::cuda::getCurrentCUDAStream(compute.device_index())),
        guard_(compute.unwrap()) {
    put_in_order(around_, compute_);
  }
  ~OnCudaStream() override {
    try {
      put_in_order(compute_, around_);
    } catch (...) {  // the device has failed; every later call on it reports that
    }
  }
  void takes(const at::Tensor& tensor) const override { cross(tensor, compute_); }
  void gives(const at::Tensor& tensor) const override { cross(tensor, around_); }

 private:
  void cross(const at::Tensor& tensor, const CUDAStream& user) const {
    if (tensor.requires_grad() && tensor.device() != compute_.device())
      throw InvalidArgument(
          fmt::format("sherd::torch: a tensor that needs a gradient goes into or out of a wrapped module and "
                      "is on {}, not on the "
                      "module's {}: its backward would run on another thread than the module's; move it with "
                      "to() outside of the "
                      "module",
                      tensor.device().str(), compute_.device().str()));
    if (around_ != compute_) record_use(tensor, user);
  }

  const CUDAStream compute_, around_;
  const c10::cuda::CUDAStreamGuard guard_;  // device and stream of this thread
};

/// Returns an id of this process, different from that of others.
uint64_t number_of_process() {
  static const uint64_t number = [] {
    std::random_device random;
    return (uint64_t{random()} << 32) ^ random();
  }();
  return number;
}

class TorchCuda final : public TorchDevice {
 public:
  explicit TorchCuda(Device& device)
      : TorchDevice(device_of(device)), device_(device), stream_(stream_of(device, place())) {}

  // Checks that no two ranks of a process share a GPU. Autograd has one thread for each GPU of a process,
  // which runs the backwards of all its ranks one after the other. A backward that waits for another rank's
  // would never end.
  void require_usable(Communicator& world) const override {
    const std::vector<uint64_t> mine = {number_of_process(), static_cast<uint64_t>(device_.ordinal())};
    const std::vector<uint64_t> all = gather_values(world, device_.compute(), mine);
    std::vector<std::pair<uint64_t, uint64_t>> gpus;
    for (size_t i = 0; i + 1 < all.size(); i += 2) gpus.emplace_back(all[i], all[i + 1]);
    std::sort(gpus.begin(), gpus.end());
    if (std::adjacent_find(gpus.begin(), gpus.end()) != gpus.end())
      throw NotSupported(
          "sherd::torch: several ranks of one process use the same GPU, and libtorch has one thread for the "
          "backwards of "
          "them all, which would wait for each other; use one GPU for each rank, or ranks that are "
          "processes");
  }

  void join() override { issued(device_.compute()); }
  void before_compute() const override { put_in_order(current(), stream_); }
  void after_compute() const override { put_in_order(stream_, current()); }
  std::unique_ptr<OnCompute> on_compute() const override { return std::make_unique<OnCudaStream>(stream_); }
  void write(const Tensor& memory, const at::Tensor& values) const override {
    ops::copy_from_host(device_.compute(), memory.bytes(), values.const_data_ptr(), memory.nbytes());
  }

 private:
  static CUDAStream stream_of(Device& device, at::Device place) {
    at::globalContext().lazyInitDevice(
        at::kCUDA);  // otherwise libtorch's first tensor on the device does this
    return c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(issued(device.compute())),
                                            place.index());
  }
  CUDAStream current() const { return c10::cuda::getCurrentCUDAStream(stream_.device_index()); }

  Device& device_;
  const CUDAStream stream_;
};

}  // namespace

std::shared_ptr<TorchDevice> torch_cuda_device(Device& device) { return std::make_shared<TorchCuda>(device); }

}  // namespace sherd::torch::detail
