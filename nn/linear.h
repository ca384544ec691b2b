// Linear layers: products with weights.
#pragma once

#include <sherd/nn/function.h>

namespace sherd::nn {

/// Returns y = x w^T + bias: x [n, in], w [out, in], bias [out] or not defined(), y [n, out]; all in the
/// unit's compute_dtype. Backward: dx = dy w, dw += dy^T x, dbias += the sum of dy over rows, in their order.
/// Gradients of frozen parameters are omitted.
Var linear(const Var& x, const Parameter& w, const Parameter& bias = {});
/// Returns gelu(linear(x, w, bias)) with the tanh form, in one kernel where the device has one; saves the
/// values before and after the gelu.
Var linear_gelu(const Var& x, const Parameter& w, const Parameter& bias = {});
/// Returns residual + linear(x, w), rounded once where the device has one kernel for it.
Var add_linear(const Var& residual, const Var& x, const Parameter& w);

/// Returns linear(gelu(linear(x, up)), down), plus `residual` if there is one. The hidden layer's gradient
/// and gelu's derivative are computed in one kernel where the device has one. up [hidden, in], down [out,
/// hidden].
Var gelu_mlp(const Var& x, const Parameter& up, const Parameter& down, const Var& residual = {});

/// Returns linear(swiglu(gate_up), down), plus `residual` if there is one, with the bits of these: gate_up
/// [n, 2 * hidden], down [out, hidden]. Saves gate_up alone; backward recomputes the gated values, half its
/// size.
Var swiglu_linear(const Var& gate_up, const Parameter& down, const Var& residual = {});

}  // namespace sherd::nn
