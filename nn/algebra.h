// Arithmetic with broadcasting.
//
// Shapes broadcast as in NumPy: from the last dimension on, sizes are equal or one of them is 1. Operands have one dtype,
// f32 or bf16 (f64 with the reference kernels); results are computed in fp32 and rounded once. Values have at most 8
// dimensions. Functions save the operands, or the result, that their derivative needs. The gradient of an operand that
// was repeated is the sum over its copies, in an order that depends on the sizes alone.
// @throws ShapeMismatch for shapes that do not broadcast, or dtypes that differ (cast() converts).
#pragma once

#include <optional>
#include <utility>

#include <sherd/nn/function.h>

namespace sherd::nn {

/// Operand of arithmetic: a value, a parameter (value()), or one number, which takes no memory and is not rounded to
/// bf16. At least one operand of a function is not a number.
class Operand {
 public:
  Operand(Var v) : var_(std::move(v)) {}
  Operand(const Tensor& t) : var_(t) {}
  Operand(const Parameter& p) : var_(p) {}
  Operand(double number) : number_(number) {}

  const Var& var() const { return var_; }
  const std::optional<double>& number() const { return number_; }

 private:
  Var var_;
  std::optional<double> number_;
};

/// Returns a + b.
Var add(const Operand& a, const Operand& b);
/// Returns a - b.
Var subtract(const Operand& a, const Operand& b);
/// Returns a * b, element by element.
Var multiply(const Operand& a, const Operand& b);
/// Returns a / b.
Var divide(const Operand& a, const Operand& b);
/// Returns a^b. Exponents that are the numbers 1/2, 1 and 2 cost no logarithm. The derivative by the exponent is 0
/// where a = 0 and b >= 0.
Var power(const Operand& a, const Operand& b);
/// Returns the larger one; NaN if either is. Where both are equal each has half of the gradient, as in PyTorch.
Var maximum(const Operand& a, const Operand& b);
/// Returns the smaller one, likewise.
Var minimum(const Operand& a, const Operand& b);

inline Var operator+(const Operand& a, const Operand& b) { return add(a, b); }
inline Var operator-(const Operand& a, const Operand& b) { return subtract(a, b); }
inline Var operator*(const Operand& a, const Operand& b) { return multiply(a, b); }
inline Var operator/(const Operand& a, const Operand& b) { return divide(a, b); }
inline Var operator-(const Var& x) { return multiply(x, -1.0); }

/// Returns 1 where a < b, else 0, in the operands' dtype; no gradient. The other comparisons likewise.
Var less(const Operand& a, const Operand& b);
/// Returns 1 where a <= b, else 0.
Var less_equal(const Operand& a, const Operand& b);
/// Returns 1 where a = b, else 0.
Var equal(const Operand& a, const Operand& b);
/// Returns a where `condition` is not 0, and b elsewhere. The condition has no gradient.
Var where(const Operand& condition, const Operand& a, const Operand& b);

/// Returns e^x; on the CPU infinity above 88.
Var exp(const Var& x);
/// Returns the natural logarithm of x.
Var log(const Var& x);
/// Returns the square root of x.
Var sqrt(const Var& x);
/// Returns tanh x.
Var tanh(const Var& x);
/// Returns 1 / (1 + e^-x).
Var sigmoid(const Var& x);
/// Returns |x|, whose slope at 0 is 0.
Var abs(const Var& x);

}  // namespace sherd::nn
