// Activations and losses composed of arithmetic and reductions. Losses are elementwise: apply sum() or mean().
#pragma once

#include <sherd/nn/algebra.h>

namespace sherd::nn {

/// Returns ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|).
Var softplus(const Var& x);
/// Returns x where x > 0, and slope * x elsewhere.
Var leaky_relu(const Var& x, double slope = 0.01);
/// Returns x where x > 0, and e^x - 1 elsewhere. (Clevert, Unterthiner and Hochreiter, 2016.)
Var elu(const Var& x);
/// Returns x sigmoid(1.702 x), an approximation of GELU. (Hendrycks and Gimpel, 2016.)
Var quick_gelu(const Var& x);
/// Returns gelu(gate) * up for gate_up [rows, 2 * hidden] with gate in its first half of columns and up in the second; the
/// result is [rows, hidden]. (Shazeer, GLU Variants Improve Transformer, 2020.)
/// @throws ShapeMismatch for an odd number of columns.
Var geglu(const Var& gate_up);
/// Returns (up + 1) * gate * sigmoid(alpha * gate), with gate cut off above `limit` and up beyond -limit and limit: the
/// product inside the experts of gpt-oss. gate and up have one shape and dtype. (OpenAI, gpt-oss, 2025, arXiv 2508.10925.)
Var clamped_swiglu(const Var& gate, const Var& up, double limit = 7, double alpha = 1.702);
/// Returns x - logsumexp(x) over dimension `dim`.
Var log_softmax(const Var& x, int64_t dim = -1);

/// Returns |d| - beta/2 where |d| >= beta, and d^2 / (2 beta) elsewhere, for d = x - target. (Girshick, 2015.)
Var smooth_l1(const Var& x, const Operand& target, double beta = 1);
/// Returns max(x, 0) - x target + ln(1 + e^-|x|): the cross-entropy of sigmoid(x) and a target in [0, 1].
Var binary_cross_entropy(const Var& logits, const Operand& target);
/// Returns p (ln p - log_q), and 0 where p = 0: the terms of the Kullback-Leibler divergence of p from q.
Var kl_divergence(const Var& log_q, const Var& p);

}  // namespace sherd::nn
