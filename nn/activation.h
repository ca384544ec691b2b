// Activation functions.
#pragma once

#include <sherd/nn/function.h>

namespace sherd::nn {

/// Returns x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). (Hendrycks and Gimpel, Gaussian Error Linear Units,
/// 2016.)
Var gelu(const Var& x);
/// Returns the exact GELU: x Phi(x) = x/2 (1 + erf(x / sqrt(2))).
Var gelu_erf(const Var& x);
/// Returns x sigmoid(x) = x / (1 + exp(-x)). (Elfwing, Uchibe and Doya, 2017.)
Var silu(const Var& x);
/// Returns max(x, 0); its slope at 0 is 0.
Var relu(const Var& x);

/// Returns silu(gate) * up, of one shape and dtype: the product inside a gated MLP, linear(swiglu(linear(x,
/// gate), linear(x, up)), down). Saves both. (Shazeer, GLU Variants Improve Transformer, 2020.)
Var swiglu(const Var& gate, const Var& up);
/// Returns the same for one product with fused weights: gate_up [rows, 2 * hidden] with gate in its first
/// half of columns and up in the second; the result is [rows, hidden].
Var swiglu(const Var& gate_up);

/// Returns exp(x) / sum(exp(x)) over the last dimension. Saves the result.
Var softmax(const Var& x);

}  // namespace sherd::nn
