// Objectives of logits by rows: log-probabilities, entropies, divergences, and functions of a head's logits in chunks.
#pragma once

#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>

#include <sherd/nn/vocab_parallel.h>

namespace sherd::nn {

// Each returns one element for each row of logits [rows, vocab]: f32, computed from f32 (f64 for f64). Logits are
// finite.

/// Returns ln softmax(logits[i])[targets[i]]; 0, without a gradient, where the target is kIgnoredTarget. Errors as
/// cross_entropy().
Var log_probs(const Var& logits, const Tensor& targets);
/// Returns the entropy of softmax(logits[i]), in nats.
Var entropy(const Var& logits);
/// Returns logsumexp(logits[i])^2, which keeps logits near 0. (Chowdhery et al., PaLM, 2022, arXiv 2204.02311.)
Var z_loss(const Var& logits);
/// Returns the Kullback-Leibler divergence KL(p || q) = sum p (ln p - ln q), in nats, of p = softmax(logits[i]) and q =
/// softmax(reference[i]): the penalty of reinforcement learning. The reference, of the shape of the logits, has no gradient.
Var divergence(const Var& logits, const Tensor& reference);
/// Returns temperature^2 * KL(q || p), in nats, of q = softmax(teacher[i] / temperature) and p = softmax(logits[i] / temperature):
/// distillation. The teacher's logits, of the shape of the logits, have no gradient. (Hinton, Vinyals and Dean, Distilling the
/// Knowledge in a Neural Network, 2015, arXiv 1503.02531.)
Var distillation(const Var& logits, const Tensor& teacher, double temperature = 1);

/// Returns nn::cross_entropy() with the objective sum(weights[i] * losses[i]); weights [rows] in the losses' dtype, without a
/// gradient.
CrossEntropy cross_entropy(const Var& logits, const Tensor& targets, const Tensor& weights);

/// Function of the logits [end - begin, vocab] of rows [begin, end) that returns [end - begin] or [end - begin, n]: each row
/// from its own logits alone. It runs again in backward, with the same result, on a tape of its own: what else it reads are
/// tensors, which get no gradient.
struct OfLogits {
  using Function = std::function<Var(const Var& logits, int64_t begin, int64_t end)>;
  template <class F>
  requires std::is_invocable_r_v<Var, F, const Var&, int64_t, int64_t>
  /// NOLINTNEXTLINE: a function is given as it is. @param all_rows of the forward that it is for; -1: any
  OfLogits(F f, int64_t all_rows = -1) : of(std::move(f)), rows(all_rows) {}
  Function of;
  int64_t rows;
};

/// Returns the function that is log_probs() of `targets`, i32 of as many elements as all rows:
///
///     const Var rows = model(tokens, nn::log_probs(targets));
OfLogits log_probs(const Tensor& targets);

/// Returns `of` of the logits linear(x, head), by `chunk` rows at a time (0 means all at once), so that at most chunk * vocab logits, and
/// what `of` computes of them, exist at once. Backward computes each chunk again. Saves x. The bits of the head's gradient
/// depend on `chunk`.
///
/// In a tensor-parallel group the logits of a chunk are gathered, so that `of` computes the same on every rank; `split` as
/// in vocab_parallel_linear_cross_entropy().
/// @throws ShapeMismatch for a result of other rows, and for another OfLogits::rows than `rows`.
Var of_logits(const VocabularyCut& cut, const Var& x, const Parameter& head, const OfLogits& of, int64_t rows,
              int64_t chunk = 0, bool split = false);

}  // namespace sherd::nn
