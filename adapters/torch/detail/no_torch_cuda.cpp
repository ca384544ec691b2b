// Stub of the adapter's GPU part, for builds without CUDA.
#include <sherd/base/error.h>
#include <sherd/torch/detail/torch_device.h>

namespace sherd::torch::detail {

std::shared_ptr<TorchDevice> torch_cuda_device(Device&) {
  throw NotCompiled(
      "sherd::torch: the ranks' devices are GPUs, and this build of the adapter supports CPUs alone; "
      "configure "
      "with "
      "-DSHERD_TORCH_CUDA=ON (a PyTorch for CUDA in SHERD_TORCH_DIR) and build again, or use the cpu device");
}

}  // namespace sherd::torch::detail
