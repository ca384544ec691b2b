#include <sherd/torch/detail/torch_device.h>

#include <cstring>

#include <sherd/torch/device.h>

namespace sherd::torch {
namespace detail {
namespace {

class TorchCpu final : public TorchDevice {
 public:
  explicit TorchCpu(Device& device) : TorchDevice(device_of(device)), compute_(device.compute()) {}

  void join() override { compute_.synchronize(); }
  void write(const Tensor& memory, const at::Tensor& values) const override {
    if (memory.nbytes() > 0)
      std::memcpy(memory.raw(), values.const_data_ptr(), static_cast<size_t>(memory.nbytes()));
  }

 private:
  Stream& compute_;
};

}  // namespace

std::shared_ptr<TorchDevice> TorchDevice::of(Device& device) {
  if (device.kind() == DeviceKind::cuda) return torch_cuda_device(device);
  return std::make_shared<TorchCpu>(device);
}

}  // namespace detail

at::Device device_of(const Device& device) {
  if (device.kind() == DeviceKind::cpu) return at::Device(at::kCPU);
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device.ordinal()));
}

}  // namespace sherd::torch
