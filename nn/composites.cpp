#include <sherd/nn/composites.h>

#include <sherd/nn/reductions.h>

namespace sherd::nn {

// The larger of x and 0 has a slope of 1/2 at 0, as softplus itself.
Var softplus(const Var& x) { return maximum(x, 0.0) + log(1.0 + exp(-abs(x))); }
Var leaky_relu(const Var& x, double slope) { return where(less(0.0, x), x, slope * x); }
// The exponential of a positive x is not used, and must not overflow: its gradient would be NaN.
Var elu(const Var& x) { return where(less(0.0, x), x, exp(minimum(x, 0.0)) - 1.0); }
Var quick_gelu(const Var& x) { return x * sigmoid(1.702 * x); }
Var log_softmax(const Var& x, int64_t dim) { return x - logsumexp(x, {dim}, true); }

Var smooth_l1(const Var& x, const Operand& target, double beta) {
  const Var d = x - target, size = abs(d);
  return where(less(size, beta), d * d * (0.5 / beta), size - 0.5 * beta);
}

Var binary_cross_entropy(const Var& logits, const Operand& target) {
  return softplus(logits) - logits * target;
}

Var kl_divergence(const Var& log_q, const Var& p) {
  const Var positive = where(less(0.0, p), p, 1.0);
  return p * (log(positive) - log_q);
}

}  // namespace sherd::nn
