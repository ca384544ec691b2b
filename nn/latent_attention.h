// Multi-head latent attention.
#pragma once

#include <sherd/nn/context_parallel.h>
#include <sherd/nn/function.h>
#include <sherd/nn/kernels/latent/latent.h>
#include <sherd/nn/kv_cache.h>

namespace sherd::nn {

struct LatentAttentionOptions {
  /// Heads of this rank; first_position and query_scale are set here: from the cache, and for the scale of
  /// scores.
  LatentHeads heads{};
  /// Scores are q.k * score_scale / sqrt(nope + rope); see RopeScaling::score_scale().
  float score_scale = 1;
  /// Same as AttentionOptions::cache, for heads of LatentHeads::width() columns. It keeps the keys and values
  /// of heads, not the narrower latent rows.
  KvCache::Layer* cache = nullptr;
  Tensor starts{};      ///< as AttentionOptions::starts
  Tensor max_logits{};  ///< as AttentionOptions::max_logits
  Tensor lengths{};     ///< as AttentionOptions::lengths
  /// As AttentionOptions::context. Heads are exchanged in the form of attention(), so that the gradient of k_rope is summed over
  /// heads in one order.
  SequenceSlice context{};
};

/// Returns causal self-attention [batch * seq, heads * value] of q [batch * seq, heads * (nope + rope)], kv [batch * seq,
/// heads * (nope + value)] and k_rope [batch * seq, rope], the part of the keys that all heads share (DeepSeek-AI,
/// DeepSeek-V2, 2024, arXiv 2405.04434, equations 9 to 19). Parts with positions are rotated here. attention() has one
/// width for keys and values: the narrower ones are padded with zeros to the width of the others, and the columns of the
/// result that come of padding are cut off. Saves what attention() saves of the padded heads, and not q and kv.
/// @param inv_freq f32 [rope / 2] on the device; see rope_table().
/// @throws ShapeMismatch, InvalidArgument as pack_latent() and attention().
Var latent_attention(const Var& q, const Var& kv, const Var& k_rope, const Tensor& inv_freq,
                     const LatentAttentionOptions& options);

}  // namespace sherd::nn
