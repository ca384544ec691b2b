// Latent attention of a decoder's layer.
#pragma once

#include <cstdint>
#include <memory>

#include <sherd/fsdp/logit_maxima.h>
#include <sherd/nn/attention.h>
#include <sherd/nn/kv_cache.h>
#include <sherd/nn/models/detail/parts.h>
#include <sherd/nn/models/detail/rope_table.h>
#include <sherd/nn/module.h>

namespace sherd::nn::detail {

/// residual + out(latent_attention(q, kv, k_rope)), where
///   q = q_b(norm(q_a(x))), or q(x) without a rank of queries; [latent, k_rope] = kv_a(x); kv = kv_b(norm(latent)).
/// Tensor-parallel: a rank has heads / tp heads, that is rows of q_b, q and kv_b and columns of out. The narrow products
/// of q_a and kv_a are computed whole on every rank. Row blocks for optimizers of matrices: each head of q_b, and each
/// head's keys and values in kv_b, are matrices by themselves; so are the two parts of kv_a.
class LatentSelfAttention : public Module<LatentSelfAttention> {
 public:
  LatentSelfAttention(const Context& context, std::shared_ptr<RopeTable> rope);
  Var forward(const SequenceRows& rows, const Var& residual, const Var& x, int64_t batch,
              const Documents& documents = {}, const LayerCaches& caches = {});
  int64_t cached_heads() const { return heads_; }
  /// Returns the width of a cached key or value.
  int64_t cached_width() const;
  const std::shared_ptr<LogitMaxima>& logit_maxima() const { return maxima_; }

 private:
  Var queries(const SequenceRows::Entered& x) const;

  Context context_;
  std::shared_ptr<LogitMaxima> maxima_;  // null: not kept
  std::shared_ptr<RopeTable> rope_;
  int64_t heads_;                              // of this rank
  Parameter q_a_, q_a_bias_, q_a_norm_, q_b_;  // q_b alone without a rank of queries
  Parameter kv_a_, kv_a_bias_, kv_a_norm_, kv_b_;
  Parameter out_, out_bias_;
  std::vector<Adapter> q_a_adapters_, q_b_adapters_, kv_a_adapters_, kv_b_adapters_, out_adapters_;
};

}  // namespace sherd::nn::detail
