// Factors, conversions, sums and means of all elements.
#pragma once

#include <sherd/nn/algebra.h>

namespace sherd::nn {

/// Returns factor * x.
inline Var scale(const Var& x, float factor) { return multiply(x, static_cast<double>(factor)); }
/// Returns the elements in another dtype, f32 or bf16, each rounded once; x itself if it has that dtype. The
/// gradient is converted likewise.
Var cast(const Var& x, DType dtype);
/// Returns the same elements in another shape; no copy.
Var view(const Var& x, Shape shape);
/// Returns the sum of all elements, f32 [1]; x f32. Summed in double, in an order that depends on the element
/// count alone.
Var sum(const Var& x);
/// Returns sum(x) / number of elements.
Var mean(const Var& x);
/// Returns mean((x - target)^2), f32 [1]; x and target f32 of one shape. The target gets no gradient.
Var mean_squared_error(const Var& x, const Tensor& target);

}  // namespace sherd::nn
