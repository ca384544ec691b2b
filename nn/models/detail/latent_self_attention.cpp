#include <sherd/nn/models/detail/latent_self_attention.h>

#include <string>
#include <utility>

#include <sherd/fsdp/row_blocks.h>
#include <sherd/nn/latent_attention.h>
#include <sherd/nn/linear.h>
#include <sherd/nn/norm.h>
#include <sherd/nn/rows.h>

namespace sherd::nn::detail {
namespace {

// eps of the norms of narrow products, independent of norm_eps.
constexpr float kLatentNormEps = 1e-6f;

// linear() with adapters of w.
Var adapted(const Var& x, const Parameter& w, const Parameter& bias, const std::vector<Adapter>& adapters) {
  return add_adapters(linear(x, w, bias), x, adapters);
}

// A matrix for each head's keys and one for its values.
RowBlocks key_value_blocks(int64_t heads, int64_t nope, int64_t value) {
  RowBlocks blocks;
  for (int64_t h = 0; h < heads; ++h) {
    const std::string head = "head" + std::to_string(h);
    const int64_t begin = h * (nope + value);
    if (nope > 0) blocks.push_back({head + ".k", begin, nope, 0, 1, true});
    blocks.push_back({head + ".v", begin + nope, value, 0, 1, true});
  }
  return blocks;
}

}  // namespace

LatentSelfAttention::LatentSelfAttention(const Context& context, std::shared_ptr<RopeTable> rope)
    : context_(context), rope_(std::move(rope)), heads_(context.tp.share(context.model.heads)) {
  const ModelDescription& m = context.model;
  const LatentDescription& l = m.latent;
  const TensorParallel& tp = context.tp;
  const auto matrix = [&](const char* name, int64_t out, int64_t in) {
    return param(std::string(name) + ".weight", {out, in}, context.values());
  };
  const auto heads_of = [&](const char* name, int64_t in) {
    Parameter p = matrix(name, heads_ * m.head_dim, in);
    p.set_row_blocks(head_blocks(heads_, m.head_dim));
    return tp.cut(p, 0);
  };
  if (l.q_rank > 0) {
    q_a_ = matrix("q_a_proj", l.q_rank, m.dim);
    if (m.qkv_bias) q_a_bias_ = param("q_a_proj.bias", {l.q_rank}, constant(0));
    q_a_norm_ = param("q_a_layernorm.weight", {l.q_rank}, constant(1));
    q_b_ = heads_of("q_b_proj", l.q_rank);
  } else {
    q_b_ = heads_of("q_proj", m.dim);
  }
  kv_a_ = matrix("kv_a_proj_with_mqa", l.kv_rank + l.rope, m.dim);
  kv_a_.set_row_blocks(stacked_blocks({l.kv_rank, l.rope}, {"latent", "k_rope"}));
  if (m.qkv_bias) kv_a_bias_ = param("kv_a_proj_with_mqa.bias", {l.kv_rank + l.rope}, constant(0));
  kv_a_norm_ = param("kv_a_layernorm.weight", {l.kv_rank}, constant(1));
  Parameter kv_b = matrix("kv_b_proj", heads_ * (l.nope + l.value), l.kv_rank);
  kv_b.set_row_blocks(key_value_blocks(heads_, l.nope, l.value));
  kv_b_ = tp.cut(kv_b, 0);
  out_ = tp.cut(matrix("o_proj", m.dim, heads_ * l.value), 1);
  if (m.out_bias) out_bias_ = param("o_proj.bias", {m.dim}, constant(0));
  if (context.logit_maxima) {
    // Rows of a head: q has the part without positions and the rotary one, kv_b keys and values.
    AttentionHeads of{.name = context.path,
                      .heads = static_cast<int>(heads_),
                      .kv_heads = static_cast<int>(heads_),
                      .head_dim = static_cast<int>(m.head_dim)};
    of.queries.push_back({q_b_, 0, l.nope, m.head_dim});
    of.keys.push_back({kv_b_, 0, l.nope, l.nope + l.value});
    of.alone.push_back({q_b_, l.nope, l.rope, m.head_dim});
    maxima_ = std::make_shared<LogitMaxima>(std::move(of));
  }
  const auto adapt = [&](std::vector<Adapter>& to, const char* name, const Parameter& weight, WeightCut cut) {
    context.adapt(to, name, weight, cut, 0, [this](std::string local, Shape shape, Init init) {
      return param(std::move(local), std::move(shape), std::move(init));
    });
  };
  if (l.q_rank > 0) adapt(q_a_adapters_, "q_a_proj", q_a_, WeightCut::none);
  adapt(q_b_adapters_, l.q_rank > 0 ? "q_b_proj" : "q_proj", q_b_, WeightCut::out);
  adapt(kv_a_adapters_, "kv_a_proj_with_mqa", kv_a_, WeightCut::none);
  adapt(kv_b_adapters_, "kv_b_proj", kv_b_, WeightCut::out);
  adapt(out_adapters_, "o_proj", out_, WeightCut::in);
}

int64_t LatentSelfAttention::cached_width() const {
  const LatentDescription& l = context_.model.latent;
  return LatentHeads{.nope = l.nope, .rope = l.rope, .value = l.value}.width();
}

Var LatentSelfAttention::queries(const SequenceRows::Entered& x) const {
  if (!q_a_.defined()) return adapted(x.cut, q_b_, {}, q_b_adapters_);
  const Var narrow = adapted(x.whole, q_a_, q_a_bias_, q_a_adapters_);
  return adapted(context_.tp.copied(rms_norm(narrow, q_a_norm_, kLatentNormEps)), q_b_, {}, q_b_adapters_);
}

Var LatentSelfAttention::forward(const SequenceRows& rows, const Var& residual, const Var& x, int64_t batch,
                                 const Documents& documents, const LayerCaches& caches) {
  const ModelDescription& m = context_.model;
  const LatentDescription& l = m.latent;
  const TensorParallel& tp = context_.tp;
  // From what is whole to the heads of each rank: gradients of the latter are summed over the ranks, and those of the
  // narrow products and of x are the same on all of them.
  const SequenceRows::Entered in = rows.enter_both(x);
  const std::vector<Var> compressed =
      split_columns(adapted(in.whole, kv_a_, kv_a_bias_, kv_a_adapters_), {l.kv_rank, l.rope});
  const Var kv =
      adapted(tp.copied(rms_norm(compressed[0], kv_a_norm_, kLatentNormEps)), kv_b_, {}, kv_b_adapters_);
  const auto attend = [&](const std::vector<Var>& of, int64_t sequences, KvCache::Layer* cache) {
    const LatentAttentionOptions options{.heads = {.batch = sequences,
                                                   .heads = heads_,
                                                   .nope = l.nope,
                                                   .rope = l.rope,
                                                   .value = l.value,
                                                   .interleaved = l.interleaved,
                                                   .rotation_scale = rope_->scale()},
                                         .score_scale = static_cast<float>(m.rope.scaling.score_scale()),
                                         .cache = cache,
                                         .starts = documents.starts,
                                         .max_logits = maxima_ ? maxima_->values(kv.device()) : Tensor(),
                                         .lengths = documents.lengths,
                                         .context = rows.slice};
    const int64_t own = of[1].size(0) / sequences;
    const int64_t positions = cache != nullptr ? cache->length() + own : rows.slice.positions(own);
    return latent_attention(of[0], of[1], of[2], rope_->on(kv.device(), positions), options);
  };
  const Var seen = by_sequence({queries(in), kv, tp.copied(compressed[1])}, batch, caches, attend);
  return add_row_parallel(context_, rows, residual, seen, out_, out_bias_, out_adapters_);
}

}  // namespace sherd::nn::detail
