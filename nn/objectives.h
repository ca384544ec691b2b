// Objectives of logits by rows: log-probabilities, entropies, divergences, and functions of a head's logits in chunks.
#pragma once

#include <cstdint>
#include <functional>

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
/// Returns the Kullback-Leibler divergence of softmax(logits[i]) from softmax(reference[i]), sum p (ln p - ln q), in nats. The
/// reference has no gradient.
Var divergence(const Var& logits, const Tensor& reference);

/// Returns nn::cross_entropy() with the objective sum(weights[i] * losses[i]); weights [rows] in the losses' dtype, without a
/// gradient.
CrossEntropy cross_entropy(const Var& logits, const Tensor& targets, const Tensor& weights);

/// Function of the logits [end - begin, vocab] of rows [begin, end) that returns [end - begin] or [end - begin, n]: each row
/// from its own logits alone. It runs again in backward, with the same result, on a tape of its own: what else it reads are
/// tensors, which get no gradient.
using OfLogits = std::function<Var(const Var& logits, int64_t begin, int64_t end)>;

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
/// @throws ShapeMismatch for a result of other rows.
Var of_logits(const VocabularyCut& cut, const Var& x, const Parameter& head, const OfLogits& of, int64_t rows,
              int64_t chunk = 0, bool split = false);

}  // namespace sherd::nn
