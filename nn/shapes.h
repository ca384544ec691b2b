// Shapes of values: reordering, cutting, joining and selecting.
//
// Results are copies, but for reshape(). Dimensions may be negative: they count from the end. Values are f32 or bf16 (f64
// with the reference kernels) and have at most 8 dimensions. @throws InvalidArgument for dimensions and bounds outside.
#pragma once

#include <vector>

#include <sherd/nn/function.h>

namespace sherd::nn {

/// Returns the same elements in another shape, without a copy; one size may be -1, which the others determine.
/// @throws ShapeMismatch for another number of elements.
Var reshape(const Var& x, Shape shape);
/// Returns x with dimension d of the result being dimension dims[d] of x.
Var permute(const Var& x, const std::vector<int64_t>& dims);
/// Returns x with two dimensions exchanged.
Var transpose(const Var& x, int64_t a = -2, int64_t b = -1);
/// Returns x repeated to `shape` by NumPy's rules. Backward sums over the copies.
Var broadcast_to(const Var& x, const Shape& shape);
/// Returns the elements [begin, end) of a dimension, every step-th. Backward writes a gradient of x's size.
Var slice(const Var& x, int64_t dim, int64_t begin, int64_t end, int64_t step = 1);
/// Returns the parts one after another along a dimension; other dimensions and dtypes are equal.
Var concat(const std::vector<Var>& parts, int64_t dim);
/// Returns parts of one shape along a new dimension `dim` of the result.
Var stack(const std::vector<Var>& parts, int64_t dim);
/// Returns the elements indices[0], indices[1], ... of a dimension; indices i32 [n], each in [0, its size), which the
/// stream checks. Backward adds gradients of repeated indices in their order, in f32.
Var index_select(const Var& x, int64_t dim, const Tensor& indices);

}  // namespace sherd::nn
