#include <sherd/nn/models/detail/parts.h>

#include <cmath>

#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/kernels/epilogue/epilogue.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/detail/summed_gradient.h>
#include <sherd/nn/elementwise.h>
#include <sherd/nn/models/detail/family_names.h>
#include <sherd/nn/norm.h>
#include <sherd/nn/rows.h>

namespace sherd::nn::detail {

namespace {

// x + bias, added to each row: x [n, d], bias [d].
// `tp`: ranks each of which has other rows, while the bias is whole on all of them. Its gradient is summed over them.
Var add_bias(const Var& x, const Parameter& bias, const TensorParallel& tp) {
  const Tensor in = x.value();
  return function(
      {x},
      [&](Stream& s) {
        const Tensor y = like(in);
        ops::copy(s, y, in);
        ops::add_bias(s, y, bias.data());
        return y;
      },
      [device = &in.device(), shape = in.shape(), dtype = in.dtype(), bias, tp](
          Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dy = call.output().tensor(*device, shape, dtype);
        add_summed(s, tp, bias, [&](const GradTarget& sums) {
          if (sums.beta == 0) ops::fill(s, sums.grad, 0);
          ops::bias_backward(s, sums.grad, dy);
        });
        return {call.output()};
      },
      {bias});
}

}  // namespace

Var Norm::operator()(const Var& x, const SequenceRows& rows) const {
  return bias.defined() ? layer_norm(x, weight, bias, eps, rows.partial())
                        : rms_norm(x, weight, eps, rows.partial(), base);
}

Shape Context::weight(int64_t in, int64_t out) const {
  return layout == WeightLayout::out_in ? Shape{out, in} : Shape{in, out};
}

Context Context::below(const std::string& name) const {
  Context c = *this;
  c.path += name + ".";
  return c;
}

void Context::adapt(std::vector<Adapter>& to, const char* name, const Parameter& weight, WeightCut cut,
                    int64_t column, const Adapters::Declare& declare) const {
  if (adapters) adapters->add(to, path, name, weight, cut, column, tp, declare);
}

Init Context::values() const { return normal(model.init_std); }

// (Radford et al., Language Models are Unsupervised Multitask Learners, 2019: by the square root of the
// number of residual layers. The other families do not.)
Init Context::residual_values() const {
  return is_gpt(model) ? normal(model.init_std / std::sqrt(2.0f * static_cast<float>(model.layers)))
                       : values();
}

Var by_sequence(std::vector<Var> inputs, int64_t batch, const LayerCaches& caches,
                const std::function<Var(std::vector<Var>, int64_t, KvCache::Layer*)>& attend) {
  if (caches.size() < 2) return attend(std::move(inputs), batch, caches.empty() ? nullptr : caches[0]);
  std::vector<Var> results;
  const int64_t each = inputs[0].size(0) / std::ssize(caches);
  for (int64_t i = 0; i < std::ssize(caches); ++i) {
    std::vector<Var> own;
    for (const Var& x : inputs) own.push_back(rows(x, i * each, (i + 1) * each));
    results.push_back(attend(std::move(own), 1, caches[static_cast<size_t>(i)]));
  }
  return concat_rows(results);
}

Var add_row_parallel(const Context& context, const SequenceRows& rows, const Var& residual, const Var& x,
                     const Parameter& w, const Parameter& bias, const std::vector<Adapter>& adapters) {
  if (!adapters.empty()) {
    const Var sum = rows.leave(add_adapters(packed_linear(x, {w}), x, adapters));
    const Var with_bias = bias.defined() ? add_bias(sum, bias, rows.partial()) : sum;
    return residual.defined() ? residual + with_bias : with_bias;
  }
  if (context.layout == WeightLayout::out_in && residual.defined() && !bias.defined() && !rows.splits())
    return nn::add_row_parallel(context.tp, residual, x, w);
  if (context.tp.size() == 1) return add_affine(residual, x, {w, bias}, context.layout);
  const Var sum = rows.leave(packed_linear(x, {w}, {}, context.layout));
  const Var out = bias.defined() ? add_bias(sum, bias, rows.partial()) : sum;
  return residual.defined() ? residual + out : out;
}

}  // namespace sherd::nn::detail
