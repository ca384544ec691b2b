// Losses over vocabularies.
#pragma once

#include <sherd/nn/function.h>
#include <sherd/nn/kernels/loss/loss.h>

namespace sherd::nn {

/// Objective `scale` * the sum of the rows' losses, f32 [1], and the losses themselves, f32 [rows], in nats.
struct CrossEntropy {
  Var objective;
  Tensor losses;
};

/// For custom objectives: returns f32 [1] = factor * the sum of x (f32), summed in double.
Tensor scaled_sum(Stream& s, const Tensor& x, float factor);
/// Multiplies x by the gradient of an objective of one element, unless that is 1.
void scale_by(Stream& s, const Tensor& x, const Gradient& gradient);

/// Returns losses[i] = logsumexp(logits[i]) - logits[i][targets[i]]: logits [rows, vocab], targets i32 of as
/// many elements. A `scale` of 1 / rows makes the objective the mean. Saves the logits. A row whose
/// target is kIgnoredTarget has loss 0 and no gradient; it counts in the mean that `scale` makes unless the caller
/// divides by the number of the others. Another target outside the vocabulary fails the stream with InvalidArgument.
CrossEntropy cross_entropy(const Var& logits, const Tensor& targets, float scale);
/// Returns the losses of cross_entropy() as a value, f32 [rows] (f64 for f64): the negative log-probabilities of the targets.
Var token_losses(const Var& logits, const Tensor& targets);

/// Returns cross_entropy(linear(x, head), targets, scale), computed by `chunk` rows at a time: at most chunk
/// * vocab logits exist at once. Backward recomputes those of each chunk, which is one more product (2 * rows
/// * vocab * d of the head's 6). With chunk 0 all rows are one chunk, whose logits become their own gradient
/// in forward and are saved: nothing is computed twice. Chunks are added to the head's gradient one after
/// another, so the bits depend on `chunk`.
CrossEntropy linear_cross_entropy(const Var& x, const Parameter& head, const Tensor& targets, float scale,
                                  int64_t chunk = 0);

}  // namespace sherd::nn
