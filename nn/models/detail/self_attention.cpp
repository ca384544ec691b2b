#include <sherd/nn/models/detail/self_attention.h>

#include <string>
#include <utility>

#include <sherd/fsdp/row_blocks.h>
#include <sherd/nn/models/detail/family_names.h>
#include <sherd/nn/models/detail/key_heads.h>
#include <sherd/nn/qk_norm.h>
#include <sherd/nn/rope.h>

namespace sherd::nn::detail {

SelfAttention::SelfAttention(const Context& context, std::shared_ptr<RopeTable> rope, int64_t window)
    : context_(context),
      rope_(std::move(rope)),
      window_(window),
      heads_(context.tp.share(context.model.heads)) {
  const ModelDescription& m = context.model;
  const FamilyNames& names = names_of(m.family);
  const TensorParallel& tp = context.tp;
  const bool whole = m.kv_heads % tp.size() != 0;
  if (whole) shared_ = key_heads(tp.rank() * heads_, heads_, m.heads, m.kv_heads);
  kv_heads_ = whole ? static_cast<int64_t>(shared_.size()) : tp.share(m.kv_heads);
  const auto own = [this](std::string name, Shape shape, Init init) {
    return param(std::move(name), std::move(shape), std::move(init));
  };
  const Adapters::Declare declare = context.in_layer ? context.in_layer : own;
  const auto add = [&](const char* name, int64_t local_heads, bool cut) {
    const int64_t out = local_heads * m.head_dim;
    const auto piece = [&](Parameter p, int dim) { return cut ? tp.cut(std::move(p), dim) : p; };
    weights_.push_back(
        piece(declare(std::string(name) + ".weight", context.weight(m.dim, out), context.values()),
              context.out_dim()));
    if (m.qkv_bias) biases_.push_back(piece(declare(std::string(name) + ".bias", {out}, constant(0)), 0));
  };
  const int64_t local_kv = whole ? m.kv_heads : kv_heads_;
  const bool fused = names.k == nullptr;
  add(names.q, fused ? 3 * heads_ : heads_, true);
  if (fused) {
    const int64_t rows = heads_ * m.head_dim;
    weights_[0].set_row_blocks(stacked_blocks({rows, rows, rows}, {"q", "k", "v"}));
  } else {
    add(names.k, local_kv, !whole);
    add(names.v, local_kv, !whole);
  }
  out_ = tp.cut(declare(std::string(names.out) + ".weight", context.weight(heads_ * m.head_dim, m.dim),
                        context.residual_values()),
                context.in_dim());
  if (m.out_bias) out_bias_ = declare(std::string(names.out) + ".bias", {m.dim}, constant(0));
  if (is_gpt_oss(m)) sinks_ = tp.cut(param("sinks", {heads_}, context.values()), 0);
  const int64_t queries = whole ? 0 : heads_ * m.head_dim;
  std::vector<Adapter>& of_keys = whole ? shared_adapters_ : adapters_;
  const WeightCut keys_cut = whole ? WeightCut::none : WeightCut::out;
  if (!fused) {
    context.adapt(adapters_, names.q, weights_[0], WeightCut::out, 0, declare);
    context.adapt(of_keys, names.k, weights_[1], keys_cut, queries, declare);
    context.adapt(of_keys, names.v, weights_[2], keys_cut, queries + local_kv * m.head_dim, declare);
  }
  context.adapt(out_adapters_, names.out, out_, WeightCut::in, 0, declare);
  if (context.logit_maxima) {
    AttentionHeads of{.name = context.path,
                      .heads = static_cast<int>(heads_),
                      .kv_heads = static_cast<int>(kv_heads_),
                      .head_dim = static_cast<int>(m.head_dim),
                      .normalised = m.qk_norm};
    if (whole) {  // attention() gets copies where this rank's queries do not share them evenly
      of.kv_heads = static_cast<int>(shared_.back() - shared_.front()) + 1;
      for (int64_t h = 0; h < heads_; ++h)
        of.key_of.push_back(
            static_cast<int>(shared_[static_cast<size_t>(h * kv_heads_ / heads_)] - shared_.front()));
    }
    for (const std::vector<Parameter>* all : {&weights_, &biases_}) {
      if (all->empty()) continue;
      of.queries.push_back({all->at(0)});
      of.keys.push_back({all->at(fused ? 0 : 1), fused ? queries : whole ? shared_.front() * m.head_dim : 0});
    }
    maxima_ = std::make_shared<LogitMaxima>(std::move(of));
  }
  if (!m.qk_norm) return;
  const auto norm = [&](const char* name, int64_t local_heads, bool cut) {
    if (!is_olmo(m)) return param(name, {m.head_dim}, context.norm_values());
    const Parameter p = param(name, {local_heads * m.head_dim}, context.norm_values());
    return cut ? tp.cut(p, 0) : p;
  };
  q_norm_ = norm("q_norm.weight", heads_, true);
  k_norm_ = norm("k_norm.weight", local_kv, !whole);
}

Var SelfAttention::qkv(const SequenceRows& rows, const Var& x) const {
  const auto normed = [this](const Var& packed, const std::vector<Parameter>& weights,
                             const TensorParallel& tp) {
    const ModelDescription& m = context_.model;
    return m.qk_norm && is_olmo(m) ? projection_norm(packed, weights, m.norm_eps, tp) : packed;
  };
  if (shared_.empty()) {
    const Var in = rows.enter(x);
    return normed(add_adapters(packed_linear(in, weights_, biases_, context_.layout), in, adapters_),
                  {q_norm_, k_norm_}, context_.tp);
  }
  const auto of = [&](const Var& in, size_t begin, size_t end) {
    const auto part = [&](const std::vector<Parameter>& all) {
      const auto at = [&](size_t i) { return all.begin() + static_cast<std::ptrdiff_t>(i); };
      return all.empty() ? all : std::vector<Parameter>(at(begin), at(end));
    };
    return packed_linear(in, part(weights_), part(biases_), context_.layout);
  };
  // Whole on every rank, from what is whole: the gradients of k and v are summed over the ranks' queries, and
  // those of their weights and of x are the same on all ranks.
  const auto [cut, all] = rows.enter_both(x);
  const Var keys = normed(add_adapters(of(all, 1, 3), all, shared_adapters_), {k_norm_}, {}),
            queries = normed(add_adapters(of(cut, 0, 1), cut, adapters_), {q_norm_}, context_.tp);
  return with_key_heads(queries, context_.tp.copied(keys), shared_, context_.model.head_dim);
}

Var SelfAttention::forward(const SequenceRows& rows, const Var& residual, const Var& x, int64_t batch,
                           const Documents& documents, const LayerCaches& caches) {
  const ModelDescription& m = context_.model;
  Var packed = qkv(rows, x);
  if (m.qk_norm && !is_olmo(m))
    packed = nn::qk_norm(packed, q_norm_, k_norm_, heads_, m.norm_eps, context_.tp, context_.norm_base());
  const auto attend = [&](std::vector<Var> in, int64_t sequences, KvCache::Layer* cache) {
    if (rope_->rotary()) {
      const int64_t first = cache != nullptr ? cache->length() : rows.slice.first();
      const int64_t own = in[0].size(0) / sequences;
      const Tensor frequencies =
          rope_->on(in[0].device(), cache != nullptr ? first + own : rows.slice.positions(own));
      in[0] = nn::rope(std::move(in[0]), frequencies,
                       {.batch = sequences,
                        .heads = heads_ + kv_heads_,
                        .first_position = first,
                        .head_dim = m.head_dim,
                        .scale = rope_->scale()});
    }
    return attention(in[0], {.batch = sequences,
                             .heads = heads_,
                             .kv_heads = kv_heads_,
                             .head_dim = m.head_dim,
                             .max_logits = maxima_ ? maxima_->values(in[0].device()) : Tensor(),
                             .window = window_,
                             .sinks = sinks_,
                             .cache = cache,
                             .starts = documents.starts,
                             .lengths = documents.lengths,
                             .context = rows.slice});
  };
  std::vector<Var> inputs;
  inputs.push_back(std::move(packed));
  const Var seen = by_sequence(std::move(inputs), batch, caches, attend);
  return add_row_parallel(context_, rows, residual, seen, out_, out_bias_, out_adapters_);
}

}  // namespace sherd::nn::detail
