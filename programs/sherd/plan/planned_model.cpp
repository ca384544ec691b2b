#include "planned_model.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/error.h>
#include <sherd/fsdp/module_list.h>
#include <sherd/nn/nn.h>

#include "counted_operation.h"

namespace sherd::tools {
namespace {

using nn::Var;

struct PlannedPreset {
  const char* name;
  PlannedShape shape;
};

const PlannedPreset kPlanned[] = {{"deepseek-v3",
                                   {.vocab = 129280,
                                    .dim = 7168,
                                    .layers = 61,
                                    .dense_layers = 3,
                                    .dense_hidden = 18432,
                                    .experts = 256,
                                    .top_k = 8,
                                    .shared_experts = 1,
                                    .expert_hidden = 2048,
                                    .heads = 128,
                                    .q_lora = 1536,
                                    .kv_lora = 512,
                                    .nope = 128,
                                    .rope = 64,
                                    .value = 128}},
                                  {"kimi-k2",
                                   {.vocab = 163840,
                                    .dim = 7168,
                                    .layers = 61,
                                    .dense_layers = 1,
                                    .dense_hidden = 18432,
                                    .experts = 384,
                                    .top_k = 8,
                                    .shared_experts = 1,
                                    .expert_hidden = 2048,
                                    .heads = 64,
                                    .q_lora = 1536,
                                    .kv_lora = 512,
                                    .nope = 128,
                                    .rope = 64,
                                    .value = 128}},
                                  {"gpt-oss-120b",
                                   {.vocab = 201088,
                                    .dim = 2880,
                                    .layers = 36,
                                    .experts = 128,
                                    .top_k = 4,
                                    .expert_hidden = 2880,
                                    .heads = 64,
                                    .kv_heads = 8,
                                    .head_dim = 64,
                                    .biases = true}}};

Tensor activation_like(const Tensor& beside, Shape shape, DType dtype) {
  return Tensor::empty(beside.device(), std::move(shape), dtype, "activations");
}

/// Causal attention of heads whose values have another width than queries and keys.
Var latent_attention(const Var& q, const Var& kv, const Var& k_rope, int64_t batch, const PlannedShape& p) {
  const Tensor in = q.value(), keys = kv.value(), positions = k_rope.value();
  const int64_t rows = in.size(0), seq = rows / batch;
  const Tensor out = activation_like(in, {rows, p.heads * p.value}, in.dtype());
  const Tensor lse = activation_like(in, {rows, p.heads}, DType::f32);
  const double pass = static_cast<double>(rows * p.heads) * static_cast<double>(seq + 1) *
                      static_cast<double>(p.nope + p.rope + p.value);
  const int64_t bytes = in.nbytes() + keys.nbytes() + out.nbytes();
  const auto work = [=, dtype = in.dtype()](double passes) {
    return Work{.flops = passes * pass, .bytes = static_cast<int64_t>(passes) * bytes, .dtype = dtype};
  };
  return nn::function(
      {q, kv, k_rope},
      [&](Stream& s) {
        count_operation(s, {"attention_forward", WorkKind::attention}, work(1));
        return out;
      },
      // Scores are computed again: five products of forward's two.
      [=](Stream& s, const nn::BackwardCall& call) -> std::vector<nn::Gradient> {
        const Tensor dout = call.output().tensor(out);
        const Tensor saved[] = {in, keys, positions, lse};
        std::vector<nn::Gradient> gradients;
        for (const Tensor& t : {saved[0], saved[1], saved[2]})
          gradients.emplace_back(activation_like(t, t.shape(), t.dtype()));
        count_operation(s, {"attention_backward", WorkKind::attention_backward}, work(2.5));
        return gradients;
      });
}

Init first_weights() { return normal(0.02f); }

class PlannedAttention : public nn::Module<PlannedAttention> {
 public:
  explicit PlannedAttention(const PlannedShape& p) : p_(p) {
    const auto matrix = [&](const char* name, int64_t out, int64_t in) {
      return param(name, {out, in}, first_weights());
    };
    if (p.kv_lora > 0) {
      q_a_ = matrix("q_a_proj.weight", p.q_lora, p.dim);
      q_norm_ = param("q_a_layernorm.weight", {p.q_lora}, constant(1));
      q_ = matrix("q_b_proj.weight", p.heads * (p.nope + p.rope), p.q_lora);
      kv_a_ = matrix("kv_a_proj.weight", p.kv_lora, p.dim);
      k_rope_ = matrix("k_rope_proj.weight", p.rope, p.dim);
      kv_norm_ = param("kv_a_layernorm.weight", {p.kv_lora}, constant(1));
      kv_ = matrix("kv_b_proj.weight", p.heads * (p.nope + p.value), p.kv_lora);
      out_ = matrix("o_proj.weight", p.dim, p.heads * p.value);
    } else {
      const int64_t q = p.heads * p.head_dim, kv = p.kv_heads * p.head_dim;
      q_ = matrix("qkv_proj.weight", q + 2 * kv, p.dim)
               .set_row_blocks(stacked_blocks({q, kv, kv}, {"q", "k", "v"}));
      out_ = matrix("o_proj.weight", p.dim, q);
      if (p.biases) q_bias_ = param("qkv_proj.bias", {q + 2 * kv}, constant(0));
    }
    if (p.biases) out_bias_ = param("o_proj.bias", {p.dim}, constant(0));
  }

  Var forward(const Var& x, int64_t batch) {
    if (p_.kv_lora == 0) {
      const Var qkv = nn::linear(x, q_, q_bias_);
      return nn::linear(nn::attention(qkv, {.batch = batch, .heads = p_.heads, .kv_heads = p_.kv_heads}),
                        out_, out_bias_);
    }
    const Var q = nn::linear(nn::rms_norm(nn::linear(x, q_a_), q_norm_), q_);
    const Var kv = nn::linear(nn::rms_norm(nn::linear(x, kv_a_), kv_norm_), kv_);
    return nn::linear(latent_attention(q, kv, nn::linear(x, k_rope_), batch, p_), out_, out_bias_);
  }

 private:
  const PlannedShape p_;
  Parameter q_a_, q_norm_, q_, kv_a_, k_rope_, kv_norm_, kv_, out_, q_bias_, out_bias_;
};

class PlannedMlp : public nn::Module<PlannedMlp> {
 public:
  PlannedMlp(int64_t dim, int64_t hidden) {
    gate_ = param("gate_proj.weight", {hidden, dim}, first_weights());
    up_ = param("up_proj.weight", {hidden, dim}, first_weights());
    down_ = param("down_proj.weight", {dim, hidden}, first_weights());
  }
  Var forward(const Var& x) {
    return nn::linear(nn::swiglu(nn::linear(x, gate_), nn::linear(x, up_)), down_);
  }

 private:
  Parameter gate_, up_, down_;
};

/// Experts of one rank, a unit of its own on the expert mesh.
class PlannedExperts : public nn::Module<PlannedExperts> {
 public:
  PlannedExperts(const PlannedShape& p, const nn::ExpertParallel& ep) {
    const int64_t n = ep.share(p.experts);
    const auto piece = [&](const char* name, Shape shape, Init init) {
      return param(name, std::move(shape), init).set_tensor_shard({"expert", 0, ep.parts, ep.index});
    };
    gate_ = piece("gate_proj.weight", {n, p.expert_hidden, p.dim}, first_weights());
    up_ = piece("up_proj.weight", {n, p.expert_hidden, p.dim}, first_weights());
    down_ = piece("down_proj.weight", {n, p.dim, p.expert_hidden}, first_weights());
    if (!p.biases) return;
    gate_bias_ = piece("gate_proj.bias", {n, p.expert_hidden}, constant(0));
    up_bias_ = piece("up_proj.bias", {n, p.expert_hidden}, constant(0));
    down_bias_ = piece("down_proj.bias", {n, p.dim}, constant(0));
  }
  Var forward(const Var& x, const std::vector<int64_t>& offsets) {
    const Var hidden = nn::swiglu(nn::grouped_linear(x, offsets, gate_, gate_bias_),
                                  nn::grouped_linear(x, offsets, up_, up_bias_));
    return nn::grouped_linear(hidden, offsets, down_, down_bias_);
  }

 private:
  Parameter gate_, up_, down_, gate_bias_, up_bias_, down_bias_;
};

class PlannedBlock : public nn::Module<PlannedBlock> {
 public:
  PlannedBlock(const PlannedShape& p, bool dense, const nn::ExpertParallel& ep)
      : p_(p), ep_(ep), attention_(p) {
    norm1_ = param("input_layernorm.weight", {p.dim}, constant(1));
    child("self_attn", attention_);
    norm2_ = param("post_attention_layernorm.weight", {p.dim}, constant(1));
    if (const int64_t hidden = dense ? p.dense_hidden : p.shared_experts * p.expert_hidden; hidden > 0) {
      mlp_ = std::make_unique<PlannedMlp>(p.dim, hidden);
      child(dense ? "mlp" : "shared_experts", *mlp_);
    }
    if (dense) return;
    router_ = param("mlp.router.weight", {p.experts, p.dim}, first_weights());
    experts_ = std::make_unique<PlannedExperts>(p, ep);
    child("experts", *experts_);
  }

  Var forward(const Var& x, int64_t batch) {
    const Var mid = x + attention_(nn::rms_norm(x, norm1_), batch);
    const Var in = nn::rms_norm(mid, norm2_);
    Var y = mlp_ ? mid + (*mlp_)(in) : mid;
    if (!experts_) return y;
    const auto [logits, rows] = nn::router_logits(in, router_);
    const nn::Routes routes = nn::route_top_k(logits, p_.top_k);
    const nn::ExpertExchange exchange(ep_.comm, routes.counts);
    const Var out = (*experts_)(exchange.to_experts(nn::dispatch(rows, routes)), exchange.offsets());
    return y + nn::combine(exchange.from_experts(out), routes);
  }
  ModuleBase* experts() { return experts_.get(); }

 private:
  const PlannedShape p_;
  const nn::ExpertParallel ep_;
  PlannedAttention attention_;
  Parameter norm1_, norm2_, router_;
  std::unique_ptr<PlannedMlp> mlp_;
  std::unique_ptr<PlannedExperts> experts_;
};

class PlannedModel final : public nn::CausalModel {
 public:
  PlannedModel(const PlannedShape& p, const nn::ExpertParallel& ep) : p_(p) {
    if (p.embeds) table_ = param("embed_tokens.weight", {p.vocab, p.dim}, first_weights());
    child("layers", blocks_);
    for (int64_t i = 0; i < p.layers; ++i) blocks_.emplace_back(p, i < p.dense_layers, ep);
    norm_ = param("norm.weight", {p.dim}, constant(1));
    if (p.has_head) head_ = param("lm_head.weight", {p.vocab, p.dim}, first_weights());
  }

  nn::CrossEntropy forward(const Var& tokens, const Tensor& targets, nn::ObjectiveScale scale,
                           const nn::Documents&, const nn::NextTokens&) override {
    const Tensor ids = tokens.value();
    Var x = p_.embeds ? nn::embedding(tokens, table_)
                      : Var(activation_like(ids, {ids.numel(), p_.dim}, DType::f32));  // of the stage before
    for (PlannedBlock& b : blocks_) x = b(x, ids.size(0));
    x = nn::rms_norm(x, norm_);
    if (p_.has_head) return nn::linear_cross_entropy(x, head_, targets, scale.loss, kLogitsChunk);
    const Tensor losses = activation_like(ids, {ids.numel()}, DType::f32);
    return {nn::sum(nn::cast(x, DType::f32)), losses};
  }
  Tensor forward(const Tensor&) override { throw NotSupported("a model that is planned only has no logits"); }
  size_t blocks() const override { return blocks_.size(); }
  ModuleBase& block(size_t i) override { return blocks_[i]; }
  ModuleBase* experts(size_t i) override { return blocks_[i].experts(); }
  void set_recompute(bool on) override {
    for (PlannedBlock& b : blocks_) b.set_recompute(on);
  }

 private:
  static constexpr int64_t kLogitsChunk = 1024;
  const PlannedShape p_;
  Parameter table_, norm_, head_;
  ModuleList<PlannedBlock> blocks_;
};

}  // namespace

std::vector<std::string> planned_names() {
  std::vector<std::string> names;
  for (const PlannedPreset& p : kPlanned) names.emplace_back(p.name);
  return names;
}

bool is_planned(std::string_view name) {
  return std::ranges::any_of(kPlanned, [&](const PlannedPreset& p) { return p.name == name; });
}

PlannedShape planned_shape(std::string_view name) {
  for (const PlannedPreset& p : kPlanned)
    if (p.name == name) return p.shape;
  throw InvalidArgument(
      fmt::format("preset '{}' is unknown; use one of {}", name, fmt::join(planned_names(), ", ")));
}

TokenWork token_work(const PlannedShape& p) {
  const int64_t expert = 3 * p.dim * p.expert_hidden, mixtures = p.layers - p.dense_layers;
  int64_t attention = 2 * p.dim * p.head_dim * (p.heads + p.kv_heads), width = p.heads * p.head_dim;
  if (p.kv_lora > 0) {
    attention = p.q_lora * (p.dim + p.heads * (p.nope + p.rope)) + p.dim * (p.kv_lora + p.rope) +
                p.kv_lora * p.heads * (p.nope + p.value) + p.heads * p.value * p.dim;
    // Products with keys and with values, half of each.
    width = p.heads * (p.nope + p.rope + p.value) / 2;
  }
  return {.weights = p.layers * attention + p.dense_layers * 3 * p.dim * p.dense_hidden +
                     mixtures * expert * (p.top_k + p.shared_experts) + (p.has_head ? p.dim * p.vocab : 0),
          .attention_width = p.layers * width};
}

ParameterCount count_parameters(const PlannedShape& p) {
  ParameterCount count;
  const auto model = planned_model(p, {});
  for (const auto& [name, param] : model->named_parameters()) {
    const int64_t elements = numel_of(param.global_shape());
    const bool expert = param.tensor_shard().has_value();
    count.all += elements;
    count.active += expert ? elements / p.experts * p.top_k : elements;
  }
  return count;
}

PlannedShape middle_stage(PlannedShape p, int stages) {
  if (stages == 1) return p;
  if (stages > p.layers)
    throw InvalidArgument(
        fmt::format("--pipeline {}: the model has {} blocks; use at most as many stages", stages, p.layers));
  p.layers = (p.layers + stages - 1) / stages;
  p.dense_layers = p.experts > 0 ? 0 : p.layers;
  p.embeds = p.has_head = false;
  return p;
}

std::unique_ptr<nn::CausalModel> planned_model(const PlannedShape& shape, const nn::ExpertParallel& ep) {
  return std::make_unique<PlannedModel>(shape, ep);
}

}  // namespace sherd::tools
