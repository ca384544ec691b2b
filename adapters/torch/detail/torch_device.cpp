#include <sherd/torch/detail/torch_device.h>

#include <cstring>

#include <sherd/kernels/device/trace.h>
#include <sherd/torch/device.h>

namespace sherd::torch {
namespace detail {
namespace {

class TorchCpu final : public TorchDevice {
 public:
  explicit TorchCpu(Device& device)
      : TorchDevice(device_of(device)), device_(device), compute_(device.compute()) {}

  void join() override {
    record();
    compute_.synchronize();
    since_ = Trace::now();
  }
  void write(const Tensor& memory, const at::Tensor& values) const override {
    if (memory.nbytes() > 0)
      std::memcpy(memory.raw(), values.const_data_ptr(), static_cast<size_t>(memory.nbytes()));
  }

 private:
  /// Records libtorch's time since the last join().
  void record() {
    Trace* const trace = device_.trace();
    if (trace == nullptr || !trace->enabled() || since_ == 0 || !trace->reserve()) return;
    if (lane_ == nullptr) lane_ = &trace->open(device_.label(), kLibtorchStream);
    lane_->add("libtorch", since_, Trace::now());
  }

  Device& device_;
  Stream& compute_;
  double since_ = 0;
  Trace::Lane* lane_ = nullptr;  // of the device's trace
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
