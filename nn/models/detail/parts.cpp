#include <sherd/nn/models/detail/parts.h>

#include <cmath>

#include <sherd/nn/elementwise.h>
#include <sherd/nn/models/detail/family_names.h>
#include <sherd/nn/norm.h>

namespace sherd::nn::detail {

Var Norm::operator()(const Var& x, const SequenceRows& rows) const {
  return bias.defined() ? layer_norm(x, weight, bias, eps, rows.partial())
                        : rms_norm(x, weight, eps, rows.partial());
}

Shape Context::weight(int64_t in, int64_t out) const {
  return layout == WeightLayout::out_in ? Shape{out, in} : Shape{in, out};
}

Init Context::values() const { return normal(model.init_std); }

// (Radford et al., Language Models are Unsupervised Multitask Learners, 2019: by the square root of the
// number of residual layers. The other families do not.)
Init Context::residual_values() const {
  return is_gpt2(model) ? normal(model.init_std / std::sqrt(2.0f * static_cast<float>(model.layers)))
                        : values();
}

Var add_row_parallel(const Context& context, const SequenceRows& rows, const Var& residual, const Var& x,
                     const Parameter& w, const Parameter& bias) {
  if (context.layout == WeightLayout::out_in && !bias.defined() && !rows.splits())
    return nn::add_row_parallel(context.tp, residual, x, w);
  if (context.tp.size() == 1) return add_affine(residual, x, {w, bias}, context.layout);
  const Var sum = rows.leave(packed_linear(x, {w}, {}, context.layout));
  return residual + (bias.defined() ? add_bias(sum, bias, rows.partial()) : sum);
}

}  // namespace sherd::nn::detail
