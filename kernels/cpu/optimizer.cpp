#include <cmath>

#include "cpu.h"
#include "parallel.h"

namespace sherd::cpu {

// The same fp32 operations as the reference, in the same order.

void adamw(ExecutionContext& ctx, const AdamWArgs& a) {
  const float decay = static_cast<float>(1 - a.lr * a.weight_decay);
  const float weight1 = static_cast<float>(1 - a.beta1);
  const float beta2 = static_cast<float>(a.beta2);
  const float weight2 = static_cast<float>(1 - a.beta2);
  const float step = static_cast<float>(a.lr / a.bias1);
  const float root_bias2 = static_cast<float>(std::sqrt(a.bias2));
  const float eps = static_cast<float>(a.eps);
  float *w = a.w, *m = a.m, *v = a.v;
  const float* g = a.g;
  parallel_for(ctx, a.count, kGrain, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const float mi = m[i] + weight1 * (g[i] - m[i]);
      const float vi = beta2 * v[i] + weight2 * g[i] * g[i];
      m[i] = mi;
      v[i] = vi;
      w[i] = w[i] * decay - step * mi / (std::sqrt(vi) / root_bias2 + eps);
    }
  });
}

}  // namespace sherd::cpu
