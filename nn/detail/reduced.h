// Reductions of tensors over several dimensions.
#pragma once

#include <vector>

#include <sherd/kernels/device/stream.h>
#include <sherd/nn/gradient.h>
#include <sherd/nn/kernels/reduction/reduction.h>

namespace sherd::nn::detail {

/// Dimensions of `shape`, each in [0, dimensions) and once; negative ones count from the end.
/// @throws InvalidArgument naming `function` for others, and for an empty list.
std::vector<int64_t> dims_of(const char* function, const Shape& shape, const std::vector<int64_t>& dims);
/// The shape with size 1 at `dims`.
Shape with_ones(Shape shape, const std::vector<int64_t>& dims);

/// factor * the sum of x over `dims` (dims_of()'s), or the maximum. Shape: with_ones().
Tensor reduced(Stream& s, Reduction op, const Tensor& x, const std::vector<int64_t>& dims, double factor = 1);

/// The gradient of a value of `shape` that was broadcast, from that of the result, which `like` describes.
Gradient sum_to(Stream& s, const Gradient& g, const Shape& shape, Device& device, const Shape& full,
                DType dtype);

}  // namespace sherd::nn::detail
