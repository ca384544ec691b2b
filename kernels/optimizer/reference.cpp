#include <sherd/kernels/optimizer/optimizer.h>

#include <algorithm>
#include <cmath>

#include <sherd/kernels/rest/detail/reference_forms.h>

namespace sherd::reference {
namespace {

// Hyperparameters are rounded to fp32 once, then every operation is a single fp32 operation in PyTorch's
// order; other tables must give the same bits.

void adamw_count(ExecutionContext&, const AdamWCountArgs& a) {
  if (a.skip && *a.skip != 0) return;
  for (int64_t i = 0; i < a.count; ++i) {
    a.steps[i] = std::min(a.steps[i] + 1, 0x1p24f);
    if (a.biases) a.biases[i] = adamw_bias(a.lr, a.beta1, a.beta2, static_cast<int64_t>(a.steps[i]));
  }
}

void adamw(ExecutionContext&, const AdamWArgs& a) {
  if (a.skip && *a.skip != 0) return;
  const float weight1 = static_cast<float>(1 - a.beta1);
  const float beta2 = static_cast<float>(a.beta2);
  const float weight2 = static_cast<float>(1 - a.beta2);
  const float eps = static_cast<float>(a.eps);
  const float factor = a.factor ? *a.factor : 1;
  for (const AdamWSegment& s : a.segments) {
    const AdamWBias bias = a.biases ? a.biases[s.bias] : a.bias;
    const float decay = static_cast<float>(1 - a.lr * s.weight_decay);
    const WeightsAt weights{a.forms.master, s.w, s.low};
    const StateAt firsts{{s.m, a.forms.state}}, seconds{{s.v, a.forms.state}};
    const Ref gradients{const_cast<void*>(s.g), a.forms.gradient};
    for (int64_t i = 0; i < s.count; ++i) {
      const float g = static_cast<float>(get(gradients, i)) * factor;
      float w = weights.get(i) * decay, m = firsts.get(i), v = seconds.get(i);
      m = m + weight1 * (g - m);
      v = beta2 * v + weight2 * g * g;
      w = w - bias.step_size * m / (std::sqrt(v) / bias.root + eps);
      firsts.put(i, m, s.noise, NoiseUse::first_state);
      seconds.put(i, v, s.noise, NoiseUse::second_state);
      weights.put(i, w, s.noise);
      if (s.copy != nullptr) put({s.copy, a.copy_dtype}, i, w);
    }
  }
}

void average(ExecutionContext&, const AverageArgs& a) {
  if (a.skip && *a.skip != 0) return;
  for (const AverageSegment& s : a.segments) {
    const WeightsAt weights{a.forms.master, s.w, s.low};
    const StateAt averages{{s.average, a.forms.state}};
    for (int64_t i = 0; i < s.count; ++i) {
      const float old = averages.get(i);
      averages.put(i, old + a.rate * (weights.get(i) - old), s.noise, NoiseUse::first_state);
    }
  }
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const OptimizerKernels* OptimizerKernels::reference() {
  static constexpr OptimizerKernels table{
      .adamw_count = reference::adamw_count, .adamw = reference::adamw, .average = reference::average};
  return &table;
}

}  // namespace sherd
