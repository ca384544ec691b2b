#include <sherd/torch/convert.h>

#include <memory>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/DLConvertor.h>
#include <ATen/dlpack.h>
#include <sherd/kernels/device/dlpack.h>
#include <sherd/torch/detail/torch_device.h>

namespace sherd::torch {

at::Tensor to_torch(Stream& stream, const Tensor& tensor) {
  return at::fromDLPackVersioned(to_dlpack(stream, tensor));
}

Tensor from_torch(const at::Tensor& tensor, Device& device) {
  if (!tensor.defined() || !tensor.is_contiguous())
    throw InvalidArgument(
        "sherd::torch::from_torch: the tensor is undefined or not contiguous; give tensor.contiguous()");
  detail::TorchDevice::of(device)->before_compute();
  const auto drop = [](DLManagedTensorVersioned* lent) { lent->deleter(lent); };
  std::unique_ptr<DLManagedTensorVersioned, decltype(drop)> lent(at::toDLPackVersioned(tensor.detach()),
                                                                 drop);
  Tensor taken = from_dlpack(lent.get(), device);
  (void)lent.release();
  return taken;
}

at::Tensor to_torch(Stream& stream, const DTensor& tensor) { return to_torch(stream, tensor.local()); }

at::Tensor full_tensor(Stream& stream, const DTensor& tensor) {
  return to_torch(stream, tensor.full_tensor(stream));
}

DTensor from_torch(const at::Tensor& local, const DeviceMesh& mesh, Shape global,
                   std::vector<Placement> placements) {
  return DTensor::from_local(mesh, std::move(global), std::move(placements),
                             from_torch(local, mesh.world()->device()));
}

DTensor distribute(const at::Tensor& whole, const DeviceMesh& mesh, std::vector<Placement> placements) {
  Device& device = mesh.world()->device();
  return DTensor::distribute(device.compute(), mesh, from_torch(whole, device), std::move(placements));
}

}  // namespace sherd::torch
