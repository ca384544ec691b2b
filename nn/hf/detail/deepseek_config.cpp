#include <sherd/nn/hf/detail/deepseek_config.h>

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <sherd/nn/hf/detail/config_values.h>

namespace sherd::hf {
namespace {

using nn::ModelDescription;

// Keys of the makers' own class, which names other ways of routing by them.
void require_text(JsonObject& c, const char* key, const char* wanted) {
  if (c.text(key, wanted) != wanted)
    c.refuse(key, fmt::format("only \"{}\" is computed; train a model with it", wanted));
}

}  // namespace

void read_latent(JsonObject& c, ModelDescription& d) {
  nn::LatentDescription& l = d.latent;
  l.kv_rank = columns(c, "kv_lora_rank");
  // A null means: no product of low rank.
  l.q_rank = is_null(c, "q_lora_rank") ? 0 : columns(c, "q_lora_rank", 1536);
  l.nope = columns(c, "qk_nope_head_dim");
  l.rope = columns(c, "qk_rope_head_dim");
  l.value = columns(c, "v_head_dim");
  // A null is false to the class.
  l.interleaved = c.flag("rope_interleave", !is_null(c, "rope_interleave"));
  d.head_dim = l.nope + l.rope;
  d.kv_heads = d.heads;
  if (columns(c, "num_key_value_heads", d.heads) != d.heads)
    c.refuse("num_key_value_heads",
             fmt::format("latent attention has a key for each of the {} heads", d.heads));
  if (l.rope % 2 != 0) c.refuse("qk_rope_head_dim", "it has no two halves to rotate");
  if (columns(c, "head_dim", l.rope) != l.rope)
    c.refuse("head_dim", fmt::format("it must be qk_rope_head_dim, {}, or absent", l.rope));
  if (d.heads * std::max(d.head_dim, l.value) > kMaxColumns)
    c.refuse(
        "num_attention_heads",
        fmt::format("all heads have more than {} columns; correct it, or the widths of heads", kMaxColumns));
}

void read_groups(JsonObject& c, const GroupDefaults& otherwise, ModelDescription& d,
                 std::vector<std::string>& notes) {
  nn::MixtureDescription& m = d.mixture;
  m.experts = c.integer("n_routed_experts", std::nullopt, 2, kMaxExperts);
  m.top_k = c.integer("num_experts_per_tok", 8, 1, kMaxExperts);
  m.hidden = columns(c, "moe_intermediate_size");
  d.hidden = columns(c, "intermediate_size");
  m.dense_layers = c.integer("first_k_dense_replace", otherwise.dense_layers, 0, kMaxLayers);
  if (m.dense_layers >= d.layers)
    c.refuse("first_k_dense_replace",
             fmt::format("the model has {} blocks, one of which at least must have experts", d.layers));
  // A null means: none.
  m.shared = is_null(c, "n_shared_experts") ? 0 : c.integer("n_shared_experts", 1, 0, kMaxExperts);
  m.groups = c.integer("n_group", otherwise.groups, 1, kMaxExperts);
  m.top_groups = c.integer("topk_group", otherwise.top_groups, 1, kMaxExperts);
  // A null is false to DeepSeek-V3's class, and refused by GLM's.
  m.normalise = c.flag("norm_topk_prob", !(is_deepseek(d) && is_null(c, "norm_topk_prob")));
  m.scaling = c.number("routed_scaling_factor", otherwise.scaling, kTiny, kHuge);
  const int64_t of_group = m.experts / m.groups;
  if (of_group * m.groups != m.experts || (m.groups > 1 && of_group < 2))
    c.refuse("n_group",
             fmt::format("groups must divide the {} experts, with two of them or more", m.experts));
  else if (m.top_groups > m.groups || m.top_groups * of_group < m.top_k)
    c.refuse("topk_group", fmt::format("of {} groups of {} experts it must leave the {} of a row", m.groups,
                                       of_group, m.top_k));
  require_text(c, "scoring_func", "sigmoid");
  require_text(c, "topk_method", "noaux_tc");
  if (c.integer("moe_layer_freq", 1, 1, kMaxSize) != 1)
    c.refuse("moe_layer_freq",
             "only experts in every block behind the dense ones are computed; train a model with 1");
  if (const double weight = c.number("aux_loss_alpha", 0, 0, kHuge); weight > 0)
    notes.push_back(
        fmt::format("\"aux_loss_alpha\" is {}: transformers trains without this loss; --moe-aux {} adds it",
                    weight, weight));
}

void add_latent(const ModelDescription& d, nlohmann::json& text) {
  const nn::LatentDescription& l = d.latent;
  text["kv_lora_rank"] = l.kv_rank;
  text["q_lora_rank"] = l.q_rank > 0 ? nlohmann::json(l.q_rank) : nlohmann::json();
  text["qk_nope_head_dim"] = l.nope;
  text["qk_rope_head_dim"] = text["head_dim"] = l.rope;
  text["v_head_dim"] = l.value;
  text["rope_interleave"] = l.interleaved;
}

void add_groups(const ModelDescription& d, nlohmann::json& text) {
  const nn::MixtureDescription& m = d.mixture;
  text["n_routed_experts"] = m.experts;
  text["num_experts_per_tok"] = m.top_k;
  text["moe_intermediate_size"] = m.hidden;
  text["first_k_dense_replace"] = m.dense_layers;
  text["n_shared_experts"] = m.shared;
  text["n_group"] = m.groups;
  text["topk_group"] = m.top_groups;
  text["norm_topk_prob"] = m.normalise;
  text["routed_scaling_factor"] = m.scaling;
  text["num_nextn_predict_layers"] = d.mtp_layers;
  text["moe_layer_freq"] = 1;
  text["scoring_func"] = "sigmoid";
  text["topk_method"] = "noaux_tc";
}

}  // namespace sherd::hf
