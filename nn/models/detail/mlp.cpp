#include <sherd/nn/models/detail/mlp.h>

#include <string>

#include <sherd/nn/activation.h>
#include <sherd/nn/composites.h>
#include <sherd/nn/elementwise.h>
#include <sherd/nn/linear.h>
#include <sherd/nn/models/detail/family_names.h>

namespace sherd::nn::detail {

Mlp::Mlp(const Context& context, int64_t hidden_of_all) : context_(context) {
  const ModelDescription& m = context.model;
  const FamilyNames& names = names_of(m.family);
  const TensorParallel& tp = context.tp;
  const int64_t hidden = tp.share(hidden_of_all);
  const auto own = [this](std::string name, Shape shape, Init init) {
    return param(std::move(name), std::move(shape), std::move(init));
  };
  const Adapters::Declare declare = context.in_layer ? context.in_layer : own;
  for (const char* name : {names.gate, names.up}) {
    if (name == nullptr) continue;
    in_.push_back(
        tp.cut(declare(std::string(name) + ".weight", context.weight(m.dim, hidden), context.values()),
               context.out_dim()));
    context.adapt(in_adapters_, name, in_.back(), WeightCut::out, (std::ssize(in_) - 1) * hidden, declare);
    if (m.mlp_bias)
      in_biases_.push_back(tp.cut(declare(std::string(name) + ".bias", {hidden}, constant(0)), 0));
  }
  down_ = tp.cut(
      declare(std::string(names.down) + ".weight", context.weight(hidden, m.dim), context.residual_values()),
      context.in_dim());
  context.adapt(down_adapters_, names.down, down_, WeightCut::in, 0, declare);
  if (m.mlp_bias) down_bias_ = declare(std::string(names.down) + ".bias", {m.dim}, constant(0));
}

Var Mlp::activated(const Var& in) const {
  if (in_.size() < 2) return gelu(in);
  return is_gemma(context_.model) ? geglu(in) : swiglu(in);
}

Var Mlp::forward(const SequenceRows& rows, const Var& residual, const Var& x) {
  const bool gated = in_.size() == 2, alone = context_.tp.size() == 1;
  if (!gated && (alone || !down_bias_.defined())) {
    const Var out = gelu_mlp(alone ? residual : Var(), rows.enter(x),
                             {in_[0], in_biases_.empty() ? Parameter() : in_biases_[0]}, {down_, down_bias_},
                             context_.layout);
    return alone ? out : residual + rows.leave(out);
  }
  const Var entered = rows.enter(x);
  const Var in =
      add_adapters(packed_linear(entered, in_, in_biases_, context_.layout), entered, in_adapters_);
  if (!gated || down_bias_.defined() || !down_adapters_.empty() || is_gemma(context_.model))
    return add_row_parallel(context_, rows, residual, activated(in), down_, down_bias_, down_adapters_);
  if (context_.tp.size() == 1) return swiglu_linear(in, down_, residual);
  const Var out = rows.leave(swiglu_linear(in, down_));
  return residual.defined() ? residual + out : out;
}

}  // namespace sherd::nn::detail
