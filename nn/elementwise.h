// Elementwise sums, factors and means.
#pragma once

#include <sherd/nn/function.h>

namespace sherd::nn {

/// a + b, of one shape and dtype.
Var add(const Var& a, const Var& b);
inline Var operator+(const Var& a, const Var& b) { return add(a, b); }
/// a * b element by element, of one shape and dtype. Keeps both.
Var multiply(const Var& a, const Var& b);
inline Var operator*(const Var& a, const Var& b) { return multiply(a, b); }
/// factor * x.
Var scale(const Var& x, float factor);
inline Var operator*(float factor, const Var& x) { return scale(x, factor); }
/// The elements in another dtype, f32 or bf16, each rounded once; x itself if it has that. So is the gradient.
Var cast(const Var& x, DType dtype);
/// The same elements in another shape; no copy.
Var view(const Var& x, Shape shape);
/// The sum of all elements, f32 [1]; x f32. Added up in double, in an order that the element count alone decides.
Var sum(const Var& x);
/// sum(x) / number of elements.
Var mean(const Var& x);
/// mean((x - target)^2), f32 [1]; x and target f32 of one shape. No gradient comes to the target.
Var mean_squared_error(const Var& x, const Tensor& target);

}  // namespace sherd::nn
