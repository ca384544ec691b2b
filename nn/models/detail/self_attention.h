// Attention of a decoder's layer.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <sherd/fsdp/logit_maxima.h>
#include <sherd/nn/attention.h>
#include <sherd/nn/kv_cache.h>
#include <sherd/nn/models/detail/parts.h>
#include <sherd/nn/models/detail/rope_table.h>
#include <sherd/nn/module.h>

namespace sherd::nn::detail {

/// residual + out(attention(q, k, v of x)), with grouped queries, biases, norms of heads, rope, windows and sinks as the
/// description says. Tensor-parallel: a rank has heads / tp query heads and kv_heads / tp key heads. Key
/// heads that tp does not divide are computed whole on every rank, which takes those that its queries need.
class SelfAttention : public Module<SelfAttention> {
 public:
  /// @param window as AttentionOptions::window
  SelfAttention(const Context& context, std::shared_ptr<RopeTable> rope, int64_t window = 0);
  Var forward(const SequenceRows& rows, const Var& residual, const Var& x, int64_t batch,
              const Documents& documents = {}, const LayerCaches& caches = {});
  /// Returns the number of key heads that this rank's queries use.
  int64_t cached_heads() const { return kv_heads_; }
  int64_t cached_width() const { return context_.model.head_dim; }
  const std::shared_ptr<LogitMaxima>& logit_maxima() const { return maxima_; }

 private:
  Var qkv(const SequenceRows& rows, const Var& x) const;

  Context context_;
  std::shared_ptr<LogitMaxima> maxima_;  // null: not kept
  std::shared_ptr<RopeTable> rope_;
  int64_t window_;
  int64_t heads_;                            // of this rank
  std::vector<int64_t> shared_;              // key heads that it takes of all; empty: it has its own
  int64_t kv_heads_;                         // of what attention() gets
  std::vector<Parameter> weights_, biases_;  // q, k, v
  // Adapters of the products in qkv(): q, k and v, or q alone, then k and v.
  std::vector<Adapter> adapters_, shared_adapters_;
  std::vector<Adapter> out_adapters_;
  Parameter out_, out_bias_, q_norm_, k_norm_, sinks_;
};

}  // namespace sherd::nn::detail
