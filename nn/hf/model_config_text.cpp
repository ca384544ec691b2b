#include <algorithm>
#include <charconv>
#include <iterator>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <sherd/base/error.h>

#include <sherd/nn/hf/detail/deepseek_config.h>
#include <sherd/nn/hf/detail/families.h>
#include <sherd/nn/hf/detail/rope_config.h>
#include <sherd/nn/hf/detail/window_config.h>
#include <sherd/nn/hf/model_config.h>

namespace sherd::hf {
namespace {

using nlohmann::json;
using nn::ModelDescription;

// The shortest decimal that is the float: 1e-06 rather than 9.99999997e-07. from_chars() ignores the locale.
double shortest(float value) {
  const std::string text = fmt::format("{}", value);
  double decimal = value;
  std::from_chars(text.data(), text.data() + text.size(), decimal);
  return decimal;
}

const char* dtype_text(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "float32";
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "float16";
    default:
      throw InvalidArgument(
          fmt::format("weights of a model folder are f32, bf16 or f16, not {}", name_of(dtype)));
  }
}

json gpt2_text(const ModelDescription& d) {
  return {{"activation_function", "gelu_new"},
          {"attn_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"layer_norm_epsilon", shortest(d.norm_eps)},
          {"n_embd", d.dim},
          {"n_head", d.heads},
          {"n_inner", d.hidden == 4 * d.dim ? json() : json(d.hidden)},
          {"n_layer", d.layers},
          {"n_positions", d.positions},
          {"resid_pdrop", 0.0}};
}

json llama_kind_text(const ModelDescription& d, const Family& family) {
  json text = {{"attention_dropout", 0.0},
               {"head_dim", d.head_dim},
               {"hidden_act", "silu"},
               {"hidden_size", d.dim},
               {"max_position_embeddings", d.positions},
               {"num_attention_heads", d.heads},
               {"num_hidden_layers", d.layers},
               {"num_key_value_heads", d.kv_heads},
               {"rms_norm_eps", shortest(d.norm_eps)}};
  text["intermediate_size"] = d.hidden;
  add_rope(d, family, text);
  if (family.windows) add_windows(d, family, text);
  if (is_gemma(d)) add_gemma(d, text);
  if (family.attention_bias) text["attention_bias"] = d.qkv_bias;
  if (family.mlp_bias) text["mlp_bias"] = d.mlp_bias;
  if (is_deepseek(d)) add_latent(d, text);
  if (routes_in_groups(d)) add_groups(d, text);
  if (d.family == ModelFamily::glm4_moe) text["use_qk_norm"] = d.qk_norm;
  if (!family.experts) return text;
  const bool qwen = family.family == ModelFamily::qwen3_moe;
  text[qwen ? "num_experts" : "num_local_experts"] = d.mixture.experts;
  text["num_experts_per_tok"] = d.mixture.top_k;
  text["output_router_logits"] = d.mixture.balance > 0;
  text["router_aux_loss_coef"] = d.mixture.balance;
  text[qwen ? "moe_intermediate_size" : "intermediate_size"] = d.mixture.hidden;
  if (qwen) {
    text["decoder_sparse_step"] = 1;
    text["mlp_only_layers"] = json::array();
    text["norm_topk_prob"] = d.mixture.normalise;
  }
  return text;
}

// "5 positions in blocks [0, 2]"; "" without windows.
std::string windows_text(const ModelDescription& d) {
  std::vector<int64_t> blocks;
  for (int64_t i = 0; i < d.layers; ++i)
    if (d.has_window(i)) blocks.push_back(i);
  return blocks.empty() ? "" : fmt::format("{} positions in blocks {}", d.window, blocks);
}

// Returns the rotary settings of blocks without and with a window, also if the family has one key for both.
std::string both_ropes(const ModelDescription& d, Family family) {
  family.rope_by_kind = true;
  json text;
  add_rope(d, family, text);
  return text["rope_parameters"].dump();
}

}  // namespace

std::string model_config_text(const ModelDescription& d, DType dtype) {
  const auto family = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                   [&](const Family& f) { return f.family == d.family; });
  if (family == std::end(kFamilies))
    throw InvalidArgument(
        "model_config_text: transformers has no model of family byte_gpt; export its weights alone");
  const bool gpt2 = d.family == ModelFamily::gpt2;
  json text = gpt2 ? gpt2_text(d) : llama_kind_text(d, *family);
  // A dense width beside experts is not used, but the class of transformers wants one.
  if (d.family == ModelFamily::qwen3_moe && d.hidden < 1) text.erase("intermediate_size");
  text["architectures"] = {family->architecture};
  text["initializer_range"] = shortest(d.init_std);
  text["model_type"] = family->model_type;
  text["tie_word_embeddings"] = d.tied;
  text["dtype"] = text["torch_dtype"] = dtype_text(dtype);
  text["use_cache"] = true;
  text["vocab_size"] = d.vocab;

  // Options without a key in the family's config.json would be lost silently: the text is read back and
  // compared.
  const std::string written = text.dump(2) + "\n";
  const ModelConfig read = parse_model_config(written, "the configuration to be written");
  const ModelDescription& again = read.description;
  std::vector<std::string> lost;
  const auto compare = [&](const char* what, auto asked, auto said) {
    if (asked != said) lost.push_back(fmt::format("{} {} would be read back as {}", what, asked, said));
  };
  compare("kv_heads", d.kv_heads, again.kv_heads);
  compare("head_dim", d.head_dim, again.head_dim);
  compare("latent.rope", d.latent.rope, again.latent.rope);
  compare("rope.columns", d.rope.columns, again.rope.columns);
  compare("query_scalar", d.query_scalar > 0 ? d.query_scalar : static_cast<double>(d.head_dim),
          again.query_scalar > 0 ? again.query_scalar : static_cast<double>(again.head_dim));
  compare("windows", windows_text(d), windows_text(again));
  if (!gpt2) compare("rope", both_ropes(d, *family), both_ropes(again, *family));
  compare("mtp_layers", d.mtp_layers, read.mtp_layers);
  compare("mixture.dense_layers", d.mixture.dense_layers, again.mixture.dense_layers);
  compare("qkv_bias", d.qkv_bias, again.qkv_bias);
  compare("out_bias", d.out_bias, again.out_bias);
  compare("mlp_bias", d.mlp_bias, again.mlp_bias);
  compare("qk_norm", d.qk_norm, again.qk_norm);
  compare("mixture.experts", d.mixture.experts, again.mixture.experts);
  compare("mixture.normalise", d.mixture.normalise,
          again.mixture.experts > 0 ? again.mixture.normalise : d.mixture.normalise);
  if (!lost.empty())
    throw InvalidArgument(fmt::format("a folder of the family {} cannot say what the model is: {}",
                                      family->model_type, fmt::join(lost, "; ")));
  return written;
}

}  // namespace sherd::hf
