// Products of one input with several weights, side by side.
#pragma once

#include <vector>

#include <sherd/nn/function.h>

namespace sherd::nn::detail {

/// Layout of a weight: [out, in] as in linear(), or [in, out] as in GPT-2's Conv1D.
enum class WeightLayout { out_in, in_out };

/// [x w_0^T + bias_0, x w_1^T + bias_1, ...] by columns: x [n, in], the result [n, sum of outs]; biases as
/// many as weights, or none. What attention() takes as qkv and swiglu() as gate_up, of weights that are
/// parameters by themselves: each product writes its columns, and backward reads them there. Backward is that
/// of linear().
/// @throws InvalidArgument, ShapeMismatch for weights and biases that do not fit.
Var packed_linear(const Var& x, const std::vector<Parameter>& weights,
                  const std::vector<Parameter>& biases = {}, WeightLayout layout = WeightLayout::out_in);

/// A weight with its bias, which may be undefined. `name` below is function()'s.
struct Affine {
  Parameter weight, bias;
};

/// residual + (x w^T + bias), the product's epilogue where the device has one. residual may be undefined.
Var add_affine(const Var& residual, const Var& x, const Affine& w, WeightLayout layout = WeightLayout::out_in,
               const char* name = __builtin_FUNCTION());

/// residual + (gelu(x up^T + bias) down^T + bias), GELU and its backward in the products' epilogues. residual may be
/// undefined.
Var gelu_mlp(const Var& residual, const Var& x, const Affine& up, const Affine& down, WeightLayout layout,
             const char* name = __builtin_FUNCTION());

}  // namespace sherd::nn::detail
