#include <sherd/kernels/optimizer/optimizer.h>

#include <cmath>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/segments.h>

namespace sherd::cpu {
namespace {

// The same fp32 operations as the reference, in the same order.

/// Factors of a segment's step, rounded to fp32 once.
struct Step {
  float decay, weight1, beta2, weight2, step, root_bias2, eps, factor;
};

/// copy[i] = w, for types of copies that are there.
struct NoCopy {
  void put(int64_t, float) const {}
};
template <class T>
struct CopyTo {
  T* to;
  void put(int64_t i, float w) const { store(to[i], w); }
};

template <class Copy>
void update(float* w, float* m, float* v, const float* g, int64_t count, const Step& step, Copy copy) {
  const Step s = step;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float gi = g[i] * s.factor;
    const float mi = m[i] + s.weight1 * (gi - m[i]);
    const float vi = s.beta2 * v[i] + s.weight2 * gi * gi;
    const float wi = w[i] * s.decay - s.step * mi / (std::sqrt(vi) / s.root_bias2 + s.eps);
    m[i] = mi;
    v[i] = vi;
    w[i] = wi;
    copy.put(i, wi);
  }
}

void adamw(ExecutionContext& ctx, const AdamWArgs& a) {
  if (a.skip && *a.skip != 0) return;
  Step all{.decay = 1,
           .weight1 = static_cast<float>(1 - a.beta1),
           .beta2 = static_cast<float>(a.beta2),
           .weight2 = static_cast<float>(1 - a.beta2),
           .step = 0,
           .root_bias2 = 1,
           .eps = static_cast<float>(a.eps),
           .factor = a.factor ? *a.factor : 1};
  with_payload(a.copy_dtype, [&]<class T>(T) {
    for_segments(ctx, a.segments, [&](const AdamWSegment& s, int64_t b, int64_t e) {
      const AdamWBias bias = a.biases ? a.biases[s.bias] : a.bias;
      Step step = all;
      step.decay = static_cast<float>(1 - a.lr * s.weight_decay);
      step.step = bias.step_size;
      step.root_bias2 = bias.root;
      if (s.copy) {
        update(s.w + b, s.m + b, s.v + b, s.g + b, e - b, step, CopyTo<T>{static_cast<T*>(s.copy) + b});
      } else {
        update(s.w + b, s.m + b, s.v + b, s.g + b, e - b, step, NoCopy{});
      }
    });
  });
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const OptimizerKernels* OptimizerKernels::cpu() {
  static const OptimizerKernels table{.adamw_count = reference()->adamw_count, .adamw = cpu::adamw};
  return &table;
}

}  // namespace sherd
