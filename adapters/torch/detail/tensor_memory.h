// Tensors of libtorch's and memory that is not.
#pragma once

#include <ATen/core/Tensor.h>

#include <sherd/kernels/device/tensor.h>

namespace sherd::torch::detail {

/// Memory of sherd's as a tensor of libtorch's, which does not own it.
at::Tensor view_of(const Tensor& memory, at::IntArrayRef sizes, at::ScalarType type);
/// A tensor of these sizes on the CPU without memory.
at::Tensor without_memory(at::IntArrayRef sizes, at::ScalarType type);
/// Gives `tensor` device, dtype and memory of `other`, which has the same sizes; it keeps its identity, and what
/// autograd knows of it. Tensor::set_data(), which does so on one device, refuses to leave the meta device.
void become(const at::Tensor& tensor, const at::Tensor& other);

}  // namespace sherd::torch::detail
