// Activation functions.
#pragma once

#include <sherd/nn/function.h>

namespace sherd::nn {

/// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). (Hendrycks and Gimpel, Gaussian Error Linear Units, 2016.)
Var gelu(const Var& x);
/// The same without the approximation: x Phi(x) = x/2 (1 + erf(x / sqrt(2))).
Var gelu_erf(const Var& x);
/// x sigmoid(x) = x / (1 + exp(-x)). (Elfwing, Uchibe and Doya, 2017.)
Var silu(const Var& x);
/// max(x, 0); its slope at 0 is 0.
Var relu(const Var& x);

/// silu(gate) * up, of one shape and dtype: the product inside of a gated MLP,
/// linear(swiglu(linear(x, gate), linear(x, up)), down). Keeps both. (Shazeer, GLU Variants Improve Transformer, 2020.)
Var swiglu(const Var& gate, const Var& up);
/// The same of one product with fused weights: gate_up [rows, 2 * hidden] with gate in its first half of columns and
/// up in the second, the result [rows, hidden].
Var swiglu(const Var& gate_up);

/// exp(x) / sum(exp(x)) over the last dimension. Keeps the result.
Var softmax(const Var& x);

}  // namespace sherd::nn
