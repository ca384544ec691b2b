// Self-attention.
#pragma once

#include <sherd/nn/function.h>
#include <sherd/nn/kv_cache.h>

namespace sherd::nn {

struct AttentionOptions {
  int64_t batch = 1;     ///< sequences of equal length, one behind the other
  int64_t heads = 1;     ///< of queries
  int64_t kv_heads = 0;  ///< of keys and of values, divides heads; 0: as many as heads
  int64_t head_dim = 0;  ///< what qkv must fit; 0: whatever follows from qkv
  /// f32 [heads] or undefined: in training (qkv is on a tape, and not inside NoGrad or evaluation mode of the root),
  /// forward raises element h to the largest score of head h. A forward off the tape, as evaluation makes it, leaves
  /// it alone: no backward follows, so a clip of the weights must not see its scores. Several forwards
  /// (microbatches, or one that is computed again for backward) go on raising; the caller sets it to
  /// -infinity when a step begins.
  Tensor max_logits{};
  /// For generation: the rows of qkv are the next positions of one sequence behind those that are kept here, and are
  /// kept from now on. Not inside of training: no gradient, nothing raises max_logits. Null: sequences as they are.
  KvCache::Layer* cache = nullptr;
};

/// Causal self-attention within each sequence: qkv [batch * seq, (heads + 2 * kv_heads) * head_dim] with the
/// heads of q, of k and of v side by side, the result [batch * seq, heads * head_dim]; query head h uses key
/// and value head h / (heads / kv_heads), and scores are scaled by 1/sqrt(head_dim). Keeps qkv, the result
/// and one f32 for each row and head. (Vaswani et al., 2017; computed by blocks as Dao et al.,
/// FlashAttention, 2022; grouped queries: Ainslie et al., GQA, 2023.)
///
/// With a cache, the same of the last rows of that sequence to rounding, and to the bit when nothing was kept before.
/// @throws ShapeMismatch / InvalidArgument for a qkv that does not fit, also into what is left of the cache; for a
/// cache on a tape outside of NoGrad, or with more than one sequence.
Var attention(const Var& qkv, const AttentionOptions& options);

/// The same with as many key heads as query heads: qkv [batch * seq, 3 * heads * head_dim].
inline Var causal_attention(const Var& qkv, int64_t batch, int64_t heads) {
  return attention(qkv, {.batch = batch, .heads = heads});
}

}  // namespace sherd::nn
