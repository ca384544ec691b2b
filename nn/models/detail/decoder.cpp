#include <sherd/nn/models/detail/decoder.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/kernels/reduce/reduce.h>
#include <sherd/nn/elementwise.h>
#include <sherd/nn/embedding.h>
#include <sherd/nn/models/detail/family_names.h>
#include <sherd/nn/rows.h>
#include <sherd/nn/shapes.h>

namespace sherd::nn::detail {

DecoderLayer::DecoderLayer(const Context& context, const ExpertParallel& ep,
                           const std::shared_ptr<RopeTable>& rope, int64_t number)
    : context_(context) {
  const FamilyNames& names = names_of(context.model.family);
  Context layer = context.below(fmt::format("{}.{}", names.layers, number));
  if (names.flat)
    layer.in_layer = [this](std::string name, Shape shape, Init init) {
      return param(std::move(name), std::move(shape), std::move(init));
    };
  norm1_ = norm(names.norm1);
  norm1_behind_ = norm(names.norm1_behind);
  if (context.model.latent.kv_rank > 0) {
    latent_ = std::make_unique<LatentSelfAttention>(layer.below(names.attention), rope);
    child(names.attention, *latent_);
  } else {
    const int64_t window = context.model.has_window(number) ? context.model.window : 0;
    attention_ = std::make_unique<SelfAttention>(layer.below(names.attention), rope, window);
    child(names.attention, *attention_);
  }
  norm2_ = norm(names.norm2);
  norm2_behind_ = norm(names.norm2_behind);
  if (context.model.has_experts(number)) {
    mixture_ = std::make_unique<Mixture>(layer.below(names.mlp), ep);
    child(names.mlp, *mixture_);
  } else {
    mlp_ = std::make_unique<Mlp>(layer.below(names.mlp), context.model.hidden);
    child(names.mlp, *mlp_);
  }
  if (number < context.model.layers) return;
  enorm_ = norm("enorm");
  hnorm_ = norm("hnorm");
  const int64_t dim = context.model.dim;
  eh_proj_ = context.tp.cut(param("eh_proj.weight", {dim, context.tp.share(2 * dim)}, context.values()), 1);
  shared_head_norm_ = norm("shared_head.norm");
}

Norm DecoderLayer::norm(const char* name) {
  if (name == nullptr) return {};
  const ModelDescription& m = context_.model;
  Norm n = context_.norm(param(std::string(name) + ".weight", {m.dim}, context_.norm_values()));
  if (is_gpt2(m)) n.bias = param(std::string(name) + ".bias", {m.dim}, constant(0));
  return n;
}

Var DecoderLayer::forward(const Var& x, const SequenceRows& rows, int64_t batch, const LayerBalance& balance,
                          const Documents& documents, const LayerCaches& caches) {
  const Var in = norm1_.defined() ? norm1_(x, rows) : x;
  if (norm1_behind_.defined()) {
    const Var mid = x + norm1_behind_((*attention_)(rows, Var(), in, batch, documents, caches), rows);
    return mid + norm2_behind_((*mlp_)(rows, Var(), norm2_.defined() ? norm2_(mid, rows) : mid), rows);
  }
  const Var mid = latent_ ? (*latent_)(rows, x, in, batch, documents, caches)
                          : (*attention_)(rows, x, in, batch, documents, caches);
  return mixture_ ? (*mixture_)(rows, mid, norm2_(mid, rows), balance)
                  : (*mlp_)(rows, mid, norm2_(mid, rows));
}

Var DecoderLayer::forward(const Var& next, const Var& x, const SequenceRows& rows, int64_t batch,
                          const LayerBalance& balance, const Documents& documents) {
  const TensorParallel& tp = context_.tp;
  const Var both = rows.enter(concat({enorm_(next, rows), hnorm_(x, rows)}, 1));
  const int64_t columns = tp.share(both.size(1)), first = tp.rank() * columns;
  const Var mine = tp.size() == 1 ? both : slice(both, 1, first, first + columns);
  const Var in = add_row_parallel(context_, rows, Var(), mine, eh_proj_, {}, {});
  return shared_head_norm_(forward(in, rows, batch, balance, documents), rows);
}

namespace {

/// A stack of experts that is a target would be left without adapters. @param name of its parameter
void refuse_stack(const std::string& name, const NamePattern& targets) {
  const std::string matrix = name.substr(0, name.rfind('.'));
  if (targets.matches(matrix))
    throw InvalidArgument(
        fmt::format("causal_model: the adapters' targets '{}' match '{}', a stack of experts, which takes no "
                    "adapters; give an expression that leaves experts out, such as 'self_attn'",
                    targets.text(), matrix));
}

LayerCaches layer_of(const std::vector<KvCache*>& caches, size_t layer) {
  LayerCaches all;
  for (KvCache* const cache : caches) all.push_back(&cache->layer(static_cast<int64_t>(layer)));
  return all;
}

// sqrt(dim), rounded to the embedding's dtype as transformers does.
float embedding_scale(const ModelDescription& m, DType dtype) {
  const float root = std::sqrt(static_cast<float>(m.dim));
  return dtype == DType::bf16 ? static_cast<float>(bf16(root)) : root;
}

}  // namespace

Decoder::Decoder(const ModelDescription& m, const CausalModelOptions& o)
    : context_{m,
               o.tp,
               layout_of(m),
               o.lora.rank > 0 ? std::make_shared<Adapters>(o.lora) : nullptr,
               {},
               o.logit_maxima},
      all_ranks_(o.ep.all),
      logits_chunk_(o.logits_chunk),
      sequence_parallel_(o.sequence_parallel),
      slices_(o.context),
      vocabulary_{o.tp, m.vocab},
      table_cut_{is_byte_gpt(m) ? TensorParallel{} : o.tp, m.vocab} {
  const FamilyNames& names = names_of(m.family);
  const auto weight = [](const char* name) { return std::string(name) + ".weight"; };
  table_ = table_cut_.cut(param(weight(names.table), {table_cut_.rows(), m.dim}, context_.values()));
  if (names.positions != nullptr)
    positions_ = param(weight(names.positions), {m.positions, m.dim}, context_.values());
  child(names.layers, layers_);
  const auto rope = std::make_shared<RopeTable>(m, m.rope);
  const auto in_windows = m.window_rope ? std::make_shared<RopeTable>(m, *m.window_rope) : rope;
  for (int64_t i = 0; i < m.layers; ++i)
    layers_.emplace_back(context_, o.ep, m.has_window(i) ? in_windows : rope, i);
  for (int64_t i = 0; i < m.mtp_layers; ++i) layers_.emplace_back(context_, o.ep, rope, m.layers + i);
  norm_ = context_.norm(param(weight(names.norm), {m.dim}, context_.norm_values()));
  if (is_gpt2(m)) norm_.bias = param(std::string(names.norm) + ".bias", {m.dim}, constant(0));
  head_ = m.tied ? tie(weight(names.head), table_)
                 : vocabulary_.cut(param(weight(names.head), {vocabulary_.rows(), m.dim}, context_.values()));
  if (!context_.adapters) return;
  for (auto& [name, p] : named_parameters())
    if (p.shape().size() == 3) refuse_stack(name, context_.adapters->targets());
  if (context_.adapters->empty())
    throw InvalidArgument(
        fmt::format("causal_model: the adapters' targets '{}' match no matrix of attention or dense MLP, as "
                    "\"model.layers.0.self_attn.{}\" is one",
                    o.lora.targets, is_deepseek(m) ? "kv_b_proj" : "q_proj"));
  for (auto& [name, p] : named_parameters())
    if (!is_adapter(name)) p.freeze();
}

void Decoder::set_recompute(bool on, Place arguments) {
  for (DecoderLayer& layer : layers_) layer.set_recompute(on, arguments);
}

Var Decoder::sliced(const Var& tokens) const {
  if (slices_.size() == 1) return tokens;
  const Tensor own = slices_.slice(tokens.value());
  return tokens.tape() != nullptr ? tokens.tape()->input(own) : Var(own);
}

SequenceRows Decoder::rows_of(const Tensor& tokens, bool cached) const {
  if (cached || slices_.size() == 1) return {context_.tp, tokens.numel(), sequence_parallel_ && !cached};
  const SequenceSlice slice{slices_, tokens.size(1)};
  const int64_t here = slices_.begin_of(slice.seq, slices_.rank() + 1) - slice.first();
  return {context_.tp, tokens.size(0) * here, sequence_parallel_, slice};
}

Var Decoder::embedded(const Var& tokens, const std::vector<int64_t>& first, const SequenceRows& rows) const {
  if (!positions_.defined() || std::ranges::all_of(first, [](int64_t p) { return p == 0; }))
    return vocab_parallel_embedding(table_cut_, tokens, table_, positions_, rows.split, rows.slice.first());
  std::vector<Var> positions;
  for (const int64_t p : first) positions.emplace_back(positions_.data().rows(p, p + tokens.size(1)));
  return vocab_parallel_embedding(table_cut_, tokens, table_) + concat_rows(positions);
}

std::vector<int64_t> Decoder::first_positions(const Tensor& tokens,
                                              const std::vector<KvCache*>& caches) const {
  const ModelDescription& m = context_.model;
  std::vector<int64_t> first;
  for (size_t i = 0; i < caches.size(); ++i) {
    KvCache* const cache = caches[i];
    if (cache == nullptr || std::find(caches.begin(), caches.begin() + static_cast<std::ptrdiff_t>(i),
                                      cache) != caches.begin() + static_cast<std::ptrdiff_t>(i))
      throw InvalidArgument("causal model: each sequence needs a cache of its own");
    if (cache->layers() != m.layers)
      throw InvalidArgument(
          fmt::format("causal model: a cache of {} layers for a model of {}; make it with make_cache()",
                      cache->layers(), m.layers));
    first.push_back(cache->length());
    cache->truncate(first.back());  // a forward that an exception ended has left rows in some layers
  }
  const int64_t last = first.empty() ? 0 : std::ranges::max(first);
  if (tokens.dim() != 2 || tokens.size(0) < 1 || last + tokens.size(1) > m.positions)
    throw ShapeMismatch(fmt::format(
        "causal model: tokens are {} behind {} kept positions, must be [batch, rows] of at most {} positions",
        sherd::to_string(tokens.shape()), last, m.positions));
  for (const int64_t p : first)
    if (m.changes_angles(p, p + tokens.size(1)))
      throw InvalidArgument(
          fmt::format("causal model: {} rows behind {} kept positions: longrope rotates a sequence of this "
                      "length by long_factor, and the kept "
                      "keys are rotated by short_factor; clear the cache and give all tokens",
                      tokens.size(1), p));
  return first;
}

Var Decoder::hidden(const Var& tokens, float balance_scale, const Documents& documents,
                    const std::vector<KvCache*>& caches) {
  if (documents.starts.defined() && positions_.defined())
    throw NotSupported("causal model: learned positions do not restart for each document in a row");
  if (!caches.empty() && slices_.size() > 1)
    throw NotSupported(
        fmt::format("causal model: {} ranks share its sequences, and caches keep whole ones; generate with a "
                    "model without "
                    "CausalModelOptions::context",
                    slices_.size()));
  const std::vector<int64_t> first = first_positions(tokens.value(), caches);
  const SequenceRows rows = rows_of(tokens.value(), !caches.empty());
  Var x = embedded(sliced(tokens), first, rows);
  if (is_gemma(context_.model)) x = nn::scale(x, embedding_scale(context_.model, x.value().dtype()));
  const auto layers = static_cast<size_t>(context_.model.layers);
  const auto loads = std::make_shared<LayerLoads>(static_cast<int>(layers));
  for (size_t i = 0; i < layers; ++i)
    x = layers_[i](x, rows, tokens.size(0),
                   balance_of(static_cast<int>(i), balance_scale, loads, tokens, documents), documents,
                   layer_of(caches, i));
  return norm_(x, rows);
}

LayerBalance Decoder::balance_of(int layer, float loss_scale, const std::shared_ptr<LayerLoads>& loads,
                                 const Var& tokens, const Documents& documents) {
  LayerBalance balance(loss_scale, loads, layer);
  balance.sequences = tokens.size(0);
  balance.lengths = documents.lengths;
  const MixtureDescription& m = context_.model.mixture;
  const bool trains = tokens.tape() != nullptr && tokens.tape()->training();
  if (!trains || m.bias_speed == 0 || !context_.model.has_experts(layer)) return balance;
  if (!step_load_.defined()) {
    step_load_ =
        Tensor::empty(tokens.device(), {std::ssize(layers_), m.experts}, DType::i32, "selection_bias");
    ops::fill(tokens.stream(), step_load_, 0);
  }
  balance.step_load = step_load_.rows(layer, layer + 1).view({m.experts});
  return balance;
}

void Decoder::update_selection_bias(const Tensor& skip) {
  if (!step_load_.defined()) return;
  Stream& s = step_load_.device().compute();
  const auto& ranks = counted_ranks(all_ranks_, table_);
  if (ranks->size() > 1) ranks->all_reduce(s, step_load_.unowned_view());
  for (size_t i = 0; i < layers_.size(); ++i)
    if (const Mixture* mixture = layers_[i].mixture();
        mixture != nullptr && mixture->selection_bias().defined())
      ops::update_selection_bias(s, mixture->selection_bias().data(),
                                 step_load_.rows(static_cast<int64_t>(i), static_cast<int64_t>(i) + 1),
                                 static_cast<float>(context_.model.mixture.bias_speed), skip);
}

CrossEntropy Decoder::loss_of(const Var& x, const Tensor& targets, float scale) const {
  return vocab_parallel_linear_cross_entropy(vocabulary_, x, head_, targets, scale, logits_chunk_,
                                             sequence_parallel_);
}

CrossEntropy Decoder::forward(const Var& tokens, const Tensor& targets, ObjectiveScale scale,
                              const Documents& documents, const NextTokens& next) {
  const Var x = hidden(tokens, scale.balance, documents);
  const CrossEntropy loss = loss_of(x, slices_.slice(targets), scale.loss);
  if (!next.tokens.defined()) return loss;
  return {loss.objective + next_objective(x, tokens, next, scale.balance, documents), loss.losses};
}

Var Decoder::next_objective(const Var& x, const Var& tokens, const NextTokens& next, float balance_scale,
                            const Documents& documents) {
  if (context_.model.mtp_layers == 0)
    throw InvalidArgument(
        "causal model: it has no head for multi-token prediction; set ModelDescription::mtp_layers, or give "
        "no next tokens");
  const auto layer = static_cast<int>(context_.model.layers);
  const SequenceRows rows = rows_of(tokens.value());
  const Var ids = tokens.tape() != nullptr ? tokens.tape()->input(next.tokens) : Var(next.tokens);
  const LayerBalance balance =
      balance_of(layer, balance_scale, std::make_shared<LayerLoads>(layer + 1), tokens, documents);
  const Var y = layers_.back()(vocab_parallel_embedding(table_cut_, sliced(ids), table_, {}, rows.split), x,
                               rows, tokens.size(0), balance, documents);
  const CrossEntropy loss = loss_of(y, slices_.slice(next.targets), next.scale);
  if (next.loss_sum.defined()) ops::accumulate_sum(tokens.stream(), next.loss_sum, loss.losses);
  return loss.objective;
}

std::vector<std::shared_ptr<LogitMaxima>> Decoder::logit_maxima() {
  std::vector<std::shared_ptr<LogitMaxima>> all;
  for (DecoderLayer& layer : layers_)
    if (auto maxima = layer.logit_maxima()) all.push_back(std::move(maxima));
  return all;
}

void Decoder::fold_adapters() {
  if (context_.adapters) context_.adapters->fold(runtime_of(*this));
}

Var Decoder::forward(const Var& tokens, const OfLogits& of, const HiddenRows& o) {
  return of_logits(vocabulary_, hidden(tokens, o.balance, o.documents), head_, of,
                   rows_of(tokens.value()).count, logits_chunk_, sequence_parallel_);
}

Var Decoder::forward(const Var& tokens, const HiddenRows& o) {
  return rows_of(tokens.value()).enter_both(hidden(tokens, o.balance, o.documents)).whole;
}

Tensor Decoder::forward(const HeadOf& of) { return vocab_parallel_logits(vocabulary_, of.hidden, head_); }

Tensor Decoder::forward(const Tensor& tokens, const std::vector<KvCache*>& caches) {
  if (tokens.dim() != 2 || tokens.size(0) != std::ssize(caches) || tokens.size(0) < 1 || tokens.size(1) < 1)
    throw ShapeMismatch(
        fmt::format("causal model: the tokens to continue are {}, must be [{}, rows] of at least one row, a "
                    "sequence for each cache",
                    sherd::to_string(tokens.shape()), std::max<size_t>(caches.size(), 1)));
  const std::vector<int64_t> first = first_positions(tokens, caches);
  try {
    const Var x = hidden(tokens, 0, {}, caches);
    const int64_t rows = tokens.size(1), width = x.size(1);
    const Var last = slice(reshape(x, {tokens.size(0), -1}), 1, (rows - 1) * width, rows * width);
    return vocab_parallel_logits(vocabulary_, last, head_);
  } catch (...) {
    for (size_t i = 0; i < first.size(); ++i) caches[i]->truncate(first[i]);
    throw;
  }
}

void Decoder::use_adapters(bool on) {
  if (context_.adapters) context_.adapters->use(on);
}

KvCache Decoder::make_cache(Device& device, int64_t capacity, DType dtype) const {
  return KvCache(device, context_.model.layers, capacity, layers_[0].cached_heads(),
                 layers_[0].cached_width(), dtype);
}

Tensor Decoder::forward(const Tensor& tokens) {
  const Var x = hidden(tokens, 0);
  const SequenceRows rows = rows_of(tokens);
  // Logits have no backward.
  const Tensor own = rows.splits() ? rows.tp.all_rows(x.stream(), x.value(), rows.count) : x.value();
  return vocab_parallel_logits(vocabulary_, Var(slices_.whole(x.stream(), own, tokens.size(1))), head_);
}

}  // namespace sherd::nn::detail
