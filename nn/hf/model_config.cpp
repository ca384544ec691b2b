#include <sherd/nn/hf/model_config.h>

#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/detail/json_object.h>
#include <sherd/base/error.h>
#include <sherd/checkpoint/files/detail/links.h>

#include <sherd/nn/hf/detail/config_values.h>
#include <sherd/nn/hf/detail/deepseek_config.h>
#include <sherd/nn/hf/detail/families.h>
#include <sherd/nn/hf/detail/rope_config.h>
#include <sherd/nn/hf/detail/window_config.h>

namespace sherd::hf {
namespace {

using nn::ModelDescription;

constexpr int64_t kMaxFileBytes = int64_t{16} << 20;
// Limit of all weights together, so that their bytes, with gradients and states, fit 64 bits by far.
constexpr double kMaxParameters = 1e15;
constexpr int64_t kMaxExpertsOfAll = int64_t{1}
                                     << 18;  // of all blocks: each has three tensors with names of their own

const Family* find_family(std::string_view model_type) {
  const auto found = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                  [&](const Family& f) { return f.model_type == model_type; });
  return found == std::end(kFamilies) ? nullptr : found;
}

// Each size may be possible, and all of them together still no model that anybody has.
void require_parameters(JsonObject& c, const ModelDescription& d) {
  if (d.mixture.experts > kMaxExpertsOfAll / std::max<int64_t>(1, d.layers - d.mixture.dense_layers))
    c.refuse("model_type",
             fmt::format("{} blocks of {} experts are more than {} experts together; correct one of the two",
                         d.layers, d.mixture.experts, kMaxExpertsOfAll));
  const auto product = [](auto... sizes) { return (1.0 * ... * static_cast<double>(sizes)); };
  const double attention = 2 * product(d.dim, d.head_dim, d.heads + d.kv_heads);
  const double mlp = 3 * (d.mixture.experts > 0 ? product(d.mixture.experts, d.dim, d.mixture.hidden)
                                                : product(d.dim, d.hidden));
  const double all = product(d.layers, attention + mlp) + 2 * product(d.vocab, d.dim) +
                     (d.family == ModelFamily::gpt2 ? product(d.positions, d.dim) : 0);
  if (all > kMaxParameters)
    c.refuse("model_type",
             fmt::format("with these sizes (vocabulary {}, {} columns, {} blocks, {} hidden columns, {} "
                         "experts) it would have {:.1e} parameters; correct the one that is too large",
                         d.vocab, d.dim, d.layers, d.mixture.experts > 0 ? d.mixture.hidden : d.hidden,
                         d.mixture.experts, all));
}

void read_activation(JsonObject& c, const char* key, std::initializer_list<std::string_view> good) {
  const std::string value = c.text(key, std::string(*good.begin()));
  if (c.has(key) && std::find(good.begin(), good.end(), value) == good.end())
    c.refuse(key,
             fmt::format("only {} is computed; train a model with that activation", fmt::join(good, ", ")));
}

void read_dtype(JsonObject& c, ModelConfig& config) {
  const char* key = spelling(c, {"dtype", "torch_dtype"});
  const std::string name = c.text(key, "");
  if (name == "float32")
    config.dtype = DType::f32;
  else if (name == "bfloat16")
    config.dtype = DType::bf16;
  else if (name == "float16")
    config.dtype = DType::f16;
  else if (!name.empty() && name != "auto")
    c.refuse(key, "weights are read as float32, bfloat16 and float16; convert the folder to one of them");
}

void read_experts(JsonObject& c, const Family& family, ModelDescription& d) {
  const bool qwen = family.family == ModelFamily::qwen3_moe;
  const char* key = spelling(c, {"num_local_experts", "num_experts"});
  d.mixture.experts = c.integer(key, std::nullopt, 1, kMaxExperts);
  if (c.has("num_experts") && c.integer("num_experts", {}, 1, kMaxExperts) != d.mixture.experts)
    c.refuse("num_experts", fmt::format("num_local_experts is {}; leave one of them", d.mixture.experts));
  d.mixture.top_k = c.integer("num_experts_per_tok", qwen ? 8 : is_gpt_oss(d) ? 4 : 2, 1, kMaxExperts);
  if (d.mixture.top_k > d.mixture.experts)
    c.refuse("num_experts_per_tok",
             fmt::format("there are {} experts; choose at most that many", d.mixture.experts));
  d.mixture.hidden = columns(c, qwen ? "moe_intermediate_size" : "intermediate_size");
  if (qwen) d.hidden = columns(c, "intermediate_size", 0);  // of dense blocks, which it has none of
  d.mixture.normalise = qwen ? c.flag("norm_topk_prob", false) : true;
  // The loss has it only then.
  const double balance = c.number("router_aux_loss_coef", 0.001, 0, kHuge);
  d.mixture.balance = c.flag("output_router_logits", false) ? balance : 0;
  if (is_gpt_oss(d))
    for (const auto& [name, value] : {std::pair("swiglu_alpha", 1.702), {"swiglu_limit", 7.0}})
      if (c.number(name, value, kTiny, kHuge) != value)
        c.refuse(name, fmt::format("only {} is computed; train a model with it", value));
  if (!qwen) return;
  if (c.integer("decoder_sparse_step", 1, 0, kMaxSize) != 1)
    c.refuse("decoder_sparse_step", "only models with experts in every block are computed; train one with 1");
  if (!c.integers("mlp_only_layers", 0, kMaxLayers).empty())
    c.refuse("mlp_only_layers", "only models with experts in every block are computed; train one with []");
}

void read_gpt2(JsonObject& c, ModelConfig& config) {
  ModelDescription& d = config.description;
  d.dim = columns(c, spelling(c, {"n_embd", "hidden_size"}));
  d.layers = c.integer(spelling(c, {"n_layer", "num_hidden_layers"}), std::nullopt, 1, kMaxLayers);
  const char* heads = spelling(c, {"n_head", "num_attention_heads"});
  d.heads = d.kv_heads = columns(c, heads);
  if (d.dim % d.heads != 0) c.refuse(heads, fmt::format("n_embd is {}, which it must divide", d.dim));
  d.head_dim = std::max<int64_t>(1, d.dim / d.heads);
  d.hidden = columns(c, "n_inner", 4 * d.dim);
  d.positions = size(c, spelling(c, {"n_positions", "max_position_embeddings"}), 1024);
  d.norm_eps = static_cast<float>(c.number("layer_norm_epsilon", 1e-5, kTiny, kHuge));
  d.qkv_bias = d.out_bias = d.mlp_bias = true;
  read_activation(c, "activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  const char* scores =
      "only scores divided by the root of the head's size are computed; train a model with the default";
  require_flag(c, "scale_attn_weights", true, true, scores);
  require_flag(c, "scale_attn_by_inverse_layer_idx", false, false, scores);
  require_flag(c, "add_cross_attention", false, false, "only decoders without an encoder are computed");
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) note_dropout(c, key, 0.1, config.notes);
}

// Query and key heads of attention that is not latent.
void read_heads(JsonObject& c, const Family& family, ModelDescription& d) {
  const bool no_kv = !c.contains("num_key_value_heads");  // null: as many as heads
  d.kv_heads = columns(c, "num_key_value_heads", no_kv ? family.kv_heads.value_or(d.heads) : d.heads);
  if (d.heads % d.kv_heads != 0)
    c.refuse("num_key_value_heads",
             fmt::format("num_attention_heads is {}, no multiple of {}", d.heads, d.kv_heads));
  const bool divides = d.dim % d.heads == 0;
  d.head_dim = columns(c, "head_dim", family.head_dim.value_or(std::max<int64_t>(1, d.dim / d.heads)));
  if (!c.has("head_dim") && !family.head_dim && !divides)
    c.refuse("num_attention_heads",
             fmt::format("hidden_size is {}, not a multiple of it, and head_dim is missing", d.dim));
  else if (d.head_dim % 2 != 0)
    c.refuse("head_dim", fmt::format("heads of {} columns have no two halves to rotate", d.head_dim));
  if (d.heads * d.head_dim > kMaxColumns)
    c.refuse("num_attention_heads",
             fmt::format("with a head_dim of {} all heads have {} columns, and at most {} are "
                         "possible; correct one of the two",
                         d.head_dim, d.heads * d.head_dim, kMaxColumns));
}

void read_llama_kind(JsonObject& c, const Family& family, ModelConfig& config) {
  ModelDescription& d = config.description;
  d.dim = columns(c, "hidden_size");
  d.layers = c.integer("num_hidden_layers", std::nullopt, 1, kMaxLayers);
  d.heads = columns(c, "num_attention_heads");
  if (is_deepseek(d))
    read_latent(c, d);
  else
    read_heads(c, family, d);
  d.positions = size(c, "max_position_embeddings", family.positions);
  d.norm_eps = static_cast<float>(c.number("rms_norm_eps", family.norm_eps, kTiny, kHuge));
  d.qkv_bias = d.out_bias = family.attention_bias && c.flag("attention_bias", family.attention_bias_default);
  d.qkv_bias = d.qkv_bias || family.qkv_bias;
  d.mlp_bias = family.mlp_bias && c.flag("mlp_bias", false);
  d.qk_norm = family.qk_norm;
  if (d.family == ModelFamily::glm4_moe) d.out_bias = false, d.qk_norm = c.flag("use_qk_norm", false);
  if (is_gemma(d))
    read_activation(c, "hidden_activation", {"gelu_pytorch_tanh"}), read_gemma(c, d);
  else
    read_activation(c, "hidden_act", {"silu", "swish"});
  if (family.windows) read_windows(c, family, d);
  read_rope(c, family, d, config.notes);
  if (is_deepseek(d))
    read_groups(c, {}, d, config.notes);
  else if (routes_in_groups(d))
    read_groups(c, {.dense_layers = 1, .groups = 1, .top_groups = 1, .scaling = 1}, d, config.notes);
  else if (family.experts)
    read_experts(c, family, d);
  else
    d.hidden = columns(c, "intermediate_size");
  if (routes_in_groups(d)) config.mtp_layers = c.integer("num_nextn_predict_layers", 0, 0, kMaxLayers);
  note_dropout(c, "attention_dropout", 0, config.notes);
  if (const double noise = c.number("router_jitter_noise", 0, 0, kHuge); noise > 0)
    config.notes.push_back(fmt::format("\"router_jitter_noise\" is {}: training here is without it", noise));
}

}  // namespace

ModelConfig parse_model_config(std::string_view text, const std::string& source) {
  JsonObject c = JsonObject::parse(text, source);
  ModelConfig config{.source = source};
  const Family* family = find_family(c.text("model_type", std::nullopt));
  if (family == nullptr) {
    std::vector<std::string_view> names;
    for (const Family& f : kFamilies) names.push_back(f.model_type);
    c.refuse("model_type", fmt::format("the families that can be trained are {}", fmt::join(names, ", ")));
    c.require_none();
  }
  ModelDescription& d = config.description;
  d.family = family->family;
  if (is_gemma(d) && c.has("text_config")) {
    c.refuse("text_config",
             "models with images are not read; save the text model alone, of model_type \"gemma3_text\"");
    c.require_none();
  }
  d.vocab = size(c, "vocab_size");
  d.tied = c.flag("tie_word_embeddings", family->family == ModelFamily::gpt2 || family->tied);
  d.init_std = static_cast<float>(c.number("initializer_range", 0.02, 0, kHuge));
  read_dtype(c, config);
  if (c.has("quantization_config"))
    c.refuse("quantization_config",
             is_gpt_oss(d)
                 ? "MXFP4 weights are not read; convert the folder to bf16 with transformers: "
                   "from_pretrained(folder, quantization_config=Mxfp4Config(dequantize=True)), then "
                   "save_pretrained()"
                 : "quantised weights are not read; take the folder they were made from");
  if (c.text("transformers_weights", "model.safetensors") != "model.safetensors")
    c.refuse("transformers_weights",
             "transformers reads these weights, and sherd model.safetensors or its index; rename them, and "
             "remove the key");
  if (family->family == ModelFamily::gpt2)
    read_gpt2(c, config);
  else
    read_llama_kind(c, *family, config);
  require_parameters(c, d);
  c.require_none();
  return config;
}

std::string read_model_text(const std::filesystem::path& folder, FileSystem& files) {
  require_inside(folder, "config.json");
  return read_whole(files, folder / "config.json", kMaxFileBytes);
}

ModelConfig read_model_config(const std::filesystem::path& folder, FileSystem& files) {
  return parse_model_config(read_model_text(folder, files), (folder / "config.json").string());
}

std::vector<int32_t> end_of_text(const std::filesystem::path& folder, FileSystem& files) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    if (files.kind(folder / name) == FileSystem::Kind::none) continue;
    require_inside(folder, name);
    JsonObject c =
        JsonObject::parse(read_whole(files, folder / name, kMaxFileBytes), (folder / name).string());
    const bool list = c.raw("eos_token_id").is_array();
    const std::vector<int64_t> tokens = list ? c.integers("eos_token_id", 0, INT32_MAX)
                                             : std::vector{c.integer("eos_token_id", -1, 0, INT32_MAX)};
    c.require_none();
    if (!tokens.empty() && tokens[0] >= 0) return {tokens.begin(), tokens.end()};
  }
  return {};
}

void require_sequence(const ModelConfig& config, int64_t seq) {
  const ModelDescription& d = config.description;
  if (seq <= d.positions) return;
  const char* key = d.family == ModelFamily::gpt2 ? "n_positions" : "max_position_embeddings";
  const bool dynamic = d.rope.scaling.type == RopeType::dynamic;
  throw InvalidArgument(fmt::format(
      "'{}': \"{}\" is {}: the model has no positions for sequences of {} tokens{}; use sequences of at most "
      "{}",
      config.source, key, d.positions, seq,
      dynamic ? " (rotary scaling \"dynamic\" beyond it has other frequencies for every length)" : "",
      d.positions));
}

}  // namespace sherd::hf
