#include <cmath>

#include "cpu.h"
#include "parallel.h"

namespace sherd::cpu {
namespace {

// The same fp32 operations as the reference, in the same order.

/// What a step is made of, rounded to fp32 once.
struct Step {
  float decay, weight1, beta2, weight2, step, root_bias2, eps;
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
void update(ExecutionContext& ctx, const AdamWArgs& a, const Step& s, Copy copy) {
  float *w = a.w, *m = a.m, *v = a.v;
  const float* g = a.g;
  parallel_for(ctx, a.count, kGrain, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const float mi = m[i] + s.weight1 * (g[i] - m[i]);
      const float vi = s.beta2 * v[i] + s.weight2 * g[i] * g[i];
      const float wi = w[i] * s.decay - s.step * mi / (std::sqrt(vi) / s.root_bias2 + s.eps);
      m[i] = mi;
      v[i] = vi;
      w[i] = wi;
      copy.put(i, wi);
    }
  });
}

}  // namespace

void adamw(ExecutionContext& ctx, const AdamWArgs& a) {
  const Step step{.decay = static_cast<float>(1 - a.lr * a.weight_decay),
                  .weight1 = static_cast<float>(1 - a.beta1),
                  .beta2 = static_cast<float>(a.beta2),
                  .weight2 = static_cast<float>(1 - a.beta2),
                  .step = static_cast<float>(a.lr / a.bias1),
                  .root_bias2 = static_cast<float>(std::sqrt(a.bias2)),
                  .eps = static_cast<float>(a.eps)};
  if (a.copy.data == nullptr) return update(ctx, a, step, NoCopy{});
  with_payload(a.copy.dtype, [&]<class T>(T) { update(ctx, a, step, CopyTo<T>{a.copy.as<T>()}); });
}

}  // namespace sherd::cpu
