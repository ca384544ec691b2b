#include <sherd/nn/composites.h>

#include <sherd/nn/activation.h>
#include <sherd/nn/reductions.h>
#include <sherd/nn/rows.h>

namespace sherd::nn {

// The larger of x and 0 has a slope of 1/2 at 0, as softplus itself.
Var softplus(const Var& x) { return maximum(x, 0.0) + log(1.0 + exp(-abs(x))); }
Var leaky_relu(const Var& x, double slope) { return where(less(0.0, x), x, slope * x); }
// The exponential of a positive x is not used, and must not overflow: its gradient would be NaN.
Var elu(const Var& x) { return where(less(0.0, x), x, exp(minimum(x, 0.0)) - 1.0); }
Var quick_gelu(const Var& x) { return x * sigmoid(1.702 * x); }

Var geglu(const Var& gate_up) {
  const Tensor in = gate_up.value();
  if (in.dim() != 2 || in.size(1) % 2 != 0)
    throw ShapeMismatch("geglu: gate and up side by side must be [rows, 2 * hidden], not " +
                        to_string(in.shape()));
  const std::vector<Var> parts = split_columns(gate_up, {in.size(1) / 2, in.size(1) / 2});
  return gelu(parts[0]) * parts[1];
}

Var clamped_swiglu(const Var& gate, const Var& up, double limit, double alpha) {
  const Var g = minimum(gate, limit);
  return (maximum(minimum(up, limit), -limit) + 1.0) * (g * sigmoid(alpha * g));
}

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
