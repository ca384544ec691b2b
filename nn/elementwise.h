// Elementwise sums, factors and means.
#pragma once

#include <sherd/nn/function.h>

namespace sherd::nn {

/// Returns a + b, of one shape and dtype.
Var add(const Var& a, const Var& b);
inline Var operator+(const Var& a, const Var& b) { return add(a, b); }
/// Returns a * b element by element, of one shape and dtype. Saves both.
Var multiply(const Var& a, const Var& b);
inline Var operator*(const Var& a, const Var& b) { return multiply(a, b); }
/// Returns factor * x.
Var scale(const Var& x, float factor);
inline Var operator*(float factor, const Var& x) { return scale(x, factor); }
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
