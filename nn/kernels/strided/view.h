// Strided views of tensors: broadcast, permuted and sliced operands without a copy.
#pragma once

#include <cstdint>
#include <vector>

#include <sherd/kernels/device/tensor.h>

namespace sherd::ops {

/// Element (i_0, i_1, ...) of a view is element `offset` + sum of i_d * strides[d] of the tensor. Strides count
/// elements and are not negative; 0 repeats an element along a dimension.
struct StridedView {
  Tensor tensor;
  int64_t offset = 0;
  Shape sizes, strides;
};

/// Views all of a tensor in its own order.
StridedView dense(const Tensor& t);
/// Repeats dimensions of size 1, and missing leading ones, as NumPy does. @throws ShapeMismatch for other sizes.
StridedView broadcast(const StridedView& v, const Shape& shape);
/// Reorders dimensions: dimension d of the result is dimension dims[d] of v, and dims has each once.
StridedView permuted(const StridedView& v, const std::vector<int64_t>& dims);
/// Takes the elements [begin, end) of dimension `dim`, every step-th. 0 <= begin <= end <= its size, step > 0.
StridedView sliced(const StridedView& v, int64_t dim, int64_t begin, int64_t end, int64_t step = 1);

/// Returns the shape to which NumPy broadcasts two shapes. @throws ShapeMismatch naming both.
Shape broadcast_shape(const Shape& a, const Shape& b);

}  // namespace sherd::ops
