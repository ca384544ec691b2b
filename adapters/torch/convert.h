// Conversions between tensors of libtorch and of sherd, without a copy.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include <sherd/dtensor/dtensor.h>

namespace sherd::torch {

/// Returns a tensor of sherd as one of libtorch: same memory, shape and dtype, on device_of(the tensor's
/// device). Waits for the queued operations on `stream`, which wrote it. It keeps the memory; the device
/// outlives it. The caller orders writes of one side and queued operations of the other.
/// @throws InvalidArgument for an undefined tensor.
at::Tensor to_torch(Stream& stream, const Tensor& tensor);
/// Returns a tensor of libtorch as one of `device`: same memory, without its graph. Later operations on
/// device.compute() are ordered after libtorch's on this thread. It keeps the memory, which sherd's allocator
/// does not count; synchronize the stream before the last reference goes.
/// @throws InvalidArgument for a tensor that is not contiguous, on another device, or of a dtype that sherd
/// lacks (bool).
Tensor from_torch(const at::Tensor& tensor, Device& device);

/// Returns this rank's piece of a distributed tensor (DTensor::local()), likewise.
at::Tensor to_torch(Stream& stream, const DTensor& tensor);
/// Returns the unsharded value of a distributed tensor on every rank (DTensor::full_tensor()). Collective
/// over its mesh.
at::Tensor full_tensor(Stream& stream, const DTensor& tensor);

/// Returns a distributed tensor whose piece on this rank is `local`, of the even shard's shape (DTensor::from_local()):
///
///     auto rows = sherd::torch::from_torch(piece, mesh, {8, 6}, {sherd::Shard(0)});
///     at::Tensor columns = sherd::torch::to_torch(stream, rows.redistribute(stream, {sherd::Shard(1)}));
///
/// `stream` of those calls is the compute stream of the mesh's device.
/// @throws ShapeMismatch for another shape; as from_torch() above.
DTensor from_torch(const at::Tensor& local, const DeviceMesh& mesh, Shape global,
                   std::vector<Placement> placements);
/// Returns this rank's shards of a tensor that every rank has (DTensor::distribute()). No communication.
DTensor distribute(const at::Tensor& whole, const DeviceMesh& mesh, std::vector<Placement> placements);

}  // namespace sherd::torch
