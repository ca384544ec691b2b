#include <cmath>

#include "reference.h"

namespace sherd::reference {

// Hyperparameters are rounded to fp32 once, then every operation is a single fp32 operation in PyTorch's
// order; other tables must give the same bits.

void adamw(ExecutionContext&, const AdamWArgs& a) {
  const float decay = static_cast<float>(1 - a.lr * a.weight_decay);
  const float weight1 = static_cast<float>(1 - a.beta1);
  const float beta2 = static_cast<float>(a.beta2);
  const float weight2 = static_cast<float>(1 - a.beta2);
  const float step = static_cast<float>(a.lr / a.bias1);
  const float root_bias2 = static_cast<float>(std::sqrt(a.bias2));
  const float eps = static_cast<float>(a.eps);
  for (int64_t i = 0; i < a.count; ++i) {
    a.w[i] = a.w[i] * decay;
    a.m[i] = a.m[i] + weight1 * (a.g[i] - a.m[i]);
    a.v[i] = beta2 * a.v[i] + weight2 * a.g[i] * a.g[i];
    a.w[i] = a.w[i] - step * a.m[i] / (std::sqrt(a.v[i]) / root_bias2 + eps);
    if (a.copy.data != nullptr) put(a.copy, i, a.w[i]);
  }
}

}  // namespace sherd::reference
