// Dense MLP of a decoder's layer.
#pragma once

#include <sherd/nn/models/detail/parts.h>
#include <sherd/nn/module.h>

namespace sherd::nn::detail {

/// residual + down(silu(gate(x)) * up(x)), of gemma3 with gelu in the place of silu, of gpt2 and byte_gpt residual +
/// down(gelu(up(x))); both with the tanh form. The residual may be undefined where gelu is.
/// Tensor-parallel: a rank has hidden / tp of the columns between, and all rows there.
class Mlp : public Module<Mlp> {
 public:
  /// @param hidden columns between, of all ranks together
  Mlp(const Context& context, int64_t hidden);
  Var forward(const SequenceRows& rows, const Var& residual, const Var& x);

 private:
  Var activated(const Var& in) const;

  Context context_;
  std::vector<Parameter> in_, in_biases_;  // gate and up, or up alone
  Parameter down_, down_bias_;
  std::vector<Adapter> in_adapters_, down_adapters_;
};

}  // namespace sherd::nn::detail
