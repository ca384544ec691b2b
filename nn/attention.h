// Self-attention.
#pragma once

#include <utility>

#include <sherd/nn/context_parallel.h>
#include <sherd/nn/function.h>
#include <sherd/nn/kv_cache.h>

namespace sherd::nn {

/// Documents and padding in the rows of equal sequences.
struct Documents {
  /// NOLINTNEXTLINE: documents are mostly given by their first positions alone.
  Documents(Tensor first_positions = {}, Tensor rows = {})
      : starts(std::move(first_positions)), lengths(std::move(rows)) {}

  /// i32 [batch, seq] or undefined, for each position the first position of its document in the sequence. Attention does
  /// not cross documents.
  Tensor starts{};
  /// i32 [batch] or undefined, 0 to seq: rows of each sequence that documents take, learned or context. They come first,
  /// and the rows behind them are padding. Padding is computed as other rows, and no other row attends to it. Largest
  /// scores, loads of experts and balancing losses leave it out. It has no loss if its targets are kIgnoredTarget; then no
  /// gradient comes from it. Undefined: no sequence has padding.
  Tensor lengths{};
};

struct AttentionOptions {
  int64_t batch = 1;     ///< sequences of equal length, one after the other
  int64_t heads = 1;     ///< number of query heads
  int64_t kv_heads = 0;  ///< number of key and value heads, divides heads; 0: as many as heads
  int64_t head_dim = 0;  ///< must fit qkv; 0: derived from qkv
  /// f32 [heads] or undefined. In training (qkv is on a tape, and not inside NoGrad or evaluation mode of the
  /// root), forward raises element h to the largest score of head h, padding left out. A forward off the tape,
  /// as in evaluation, leaves it unchanged: no backward follows, so a clip of the weights must not use its scores.
  /// Several forwards (microbatches, or a recomputation for backward) continue raising. The caller sets it to
  /// -infinity when a step begins.
  Tensor max_logits{};
  /// Positions that a row sees at most, its own included; 0: all before it.
  int64_t window = 0;
  /// [heads] or not defined(): a learned logit of each head, which is one more key's score in its softmax; see SinksArgs.
  Parameter sinks{};
  /// For generation: the rows of qkv are the next positions of one sequence after the cached ones, and are
  /// appended to the cache. Not in training: no gradient, and max_logits is not raised. Null: complete
  /// sequences.
  KvCache::Layer* cache = nullptr;
  /// Same as Documents::starts. Not with a cache. Backward reads it again.
  Tensor starts{};
  /// Same as Documents::lengths. Only max_logits depends on it.
  Tensor lengths{};
  /// The rows of qkv and of the result are this rank's slices of the sequences, of all heads; heads, kv_heads and max_logits are
  /// those of all ranks of the group. `starts` and `lengths` are those of whole sequences, with positions in them. The ranks
  /// exchange heads before attention and after it; the number of ranks divides heads and kv_heads. max_logits is raised for
  /// the heads that this rank computes. Not with a cache. Collective, forward and backward.
  SequenceSlice context{};
};

/// Returns causal self-attention within each sequence: qkv [batch * seq, (heads + 2 * kv_heads) * head_dim]
/// with the heads of q, of k and of v side by side; the result is [batch * seq, heads * head_dim]. Query head
/// h uses key and value head h / (heads / kv_heads), and scores are scaled by 1/sqrt(head_dim). Saves qkv,
/// the result and one f32 for each row and head. (Vaswani et al., 2017; computed by blocks as Dao et al.,
/// FlashAttention, 2022; grouped queries: Ainslie et al., GQA, 2023.)
///
/// With a cache it returns the last rows of that sequence: equal to rounding, and in bits when the cache was
/// empty before.
/// @throws ShapeMismatch / InvalidArgument for a qkv that does not fit, or exceeds the cache's remaining
/// capacity; for a cache on a tape outside NoGrad, or with more than one sequence; without `context` in the forward of a
/// model whose ranks share sequences.
Var attention(const Var& qkv, const AttentionOptions& options);

/// Returns the same with as many key heads as query heads: qkv [batch * seq, 3 * heads * head_dim].
inline Var causal_attention(const Var& qkv, int64_t batch, int64_t heads) {
  return attention(qkv, {.batch = batch, .heads = heads});
}

}  // namespace sherd::nn
