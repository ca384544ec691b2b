#include <sherd/nn/latent_attention.h>

#include <cmath>

#include <sherd/nn/attention.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/elementwise.h>
#include <sherd/nn/rows.h>

namespace sherd::nn {

using detail::like;

Var latent_attention(const Var& q, const Var& kv, const Var& k_rope, const Tensor& inv_freq,
                     const LatentAttentionOptions& o) {
  LatentHeads h = o.heads;
  h.first_position = o.cache != nullptr ? o.cache->length() : o.context.first();
  // attention() divides by the root of the padded width.
  h.query_scale = o.score_scale * std::sqrt(static_cast<float>(h.width()) / static_cast<float>(h.key()));
  const Tensor queries = q.value(), keys = kv.value(), shared = k_rope.value();
  const Shape packed_shape{queries.size(0), 3 * h.heads * h.width()};
  const Var packed = function(
      {q, kv, k_rope},
      [&](Stream& s) {
        const Tensor qkv = like(queries, packed_shape);
        ops::pack_latent(s, qkv, queries, keys, shared, inv_freq, h);
        return qkv;
      },
      [h, inv_freq, packed_shape, device = &queries.device(), dtype = queries.dtype(), of_q = queries.shape(),
       of_kv = keys.shape(),
       of_shared = shared.shape()](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dqkv = call.output().tensor(*device, packed_shape, dtype);
        const Tensor dq = like(dqkv, of_q), dkv = like(dqkv, of_kv), dshared = like(dqkv, of_shared);
        ops::unpack_latent(s, dq, dkv, dshared, dqkv, inv_freq, h);
        return {dq, dkv, dshared};
      });
  const int64_t rows = queries.size(0);
  const Var seen = attention(packed, {.batch = h.batch,
                                      .heads = h.heads,
                                      .head_dim = h.width(),
                                      .max_logits = o.max_logits,
                                      .cache = o.cache,
                                      .starts = o.starts,
                                      .lengths = o.lengths,
                                      .context = o.context});
  if (h.value == h.width()) return seen;
  const std::vector<Var> parts =
      split_columns(view(seen, {rows * h.heads, h.width()}), {h.value, h.width() - h.value});
  return view(parts[0], {rows, h.heads * h.value});
}

}  // namespace sherd::nn
