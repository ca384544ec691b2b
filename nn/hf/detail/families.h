// Default values of the configuration classes of transformers 5. Private to nn/hf.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <sherd/nn/models/description.h>

namespace sherd::hf {

/// A family; names and figures of its configuration class.
struct Family {
  nn::ModelFamily family;
  std::string_view model_type, architecture;
  /// Default for an absent key; none: as many as heads.
  std::optional<int64_t> kv_heads = std::nullopt;
  /// Default for an absent key; none: dim / heads.
  std::optional<int64_t> head_dim = std::nullopt;
  int64_t positions = 0;
  double norm_eps = 1e-6, theta = 10000;
  /// "sliding_window" is supported; all blocks have it, unless the next members say otherwise.
  bool windows = true;
  /// Default for an absent "sliding_window"; 0: no window.
  int64_t window = 0;
  /// Windows are only used where "use_sliding_window" is true.
  bool window_switch = false;
  /// Blocks differ by "layer_types"; where it is absent, blocks from "max_window_layers" on have windows.
  bool window_by_layer = false;
  /// Blocks differ by "layer_types"; where it is absent, the last of every so many blocks has no window, the others have
  /// one. 0: not of this family.
  int64_t window_pattern = 0;
  /// theta of blocks with a window; and its key outside of rope_parameters, if any.
  double window_theta = 10000;
  const char* window_theta_key = nullptr;
  /// "rope_parameters" has an object for each kind of block.
  bool rope_by_kind = false;
  bool tied = false;  // where "tie_word_embeddings" is absent
  /// "attention_bias" is known (of q, k, v and o); otherwise q, k and v have biases as qkv_bias says.
  bool attention_bias = false;
  bool attention_bias_default = false;  // where it is absent
  bool qkv_bias = false;
  bool mlp_bias = false;  // "mlp_bias" is known
  bool qk_norm = false;
  bool experts = false;
};

using nn::ModelFamily;

/// Kinds of blocks, in "layer_types" and as keys of "rope_parameters".
inline constexpr const char* kFullAttention = "full_attention";
inline constexpr const char* kSlidingAttention = "sliding_attention";

constexpr Family gemma3(std::string_view model_type) {
  return {.family = ModelFamily::gemma3,
          .model_type = model_type,
          .architecture = "Gemma3ForCausalLM",
          .kv_heads = 4,
          .head_dim = 256,
          .positions = 131072,
          .theta = 1e6,
          .window = 4096,
          .window_pattern = 6,
          .window_theta_key = "rope_local_base_freq",
          .rope_by_kind = true,
          .tied = true,
          .attention_bias = true,
          .qk_norm = true};
}

constexpr Family kFamilies[] = {
    {.family = ModelFamily::gpt2,
     .model_type = "gpt2",
     .architecture = "GPT2LMHeadModel",
     .positions = 1024,
     .norm_eps = 1e-5},
    {.family = ModelFamily::llama,
     .model_type = "llama",
     .architecture = "LlamaForCausalLM",
     .positions = 2048,
     .windows = false,
     .attention_bias = true,
     .mlp_bias = true},
    {.family = ModelFamily::mistral,
     .model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .kv_heads = 8,
     .positions = 131072,
     .window = 4096},
    {.family = ModelFamily::qwen2,
     .model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .kv_heads = 32,
     .positions = 32768,
     .window = 4096,
     .window_switch = true,
     .window_by_layer = true,
     .qkv_bias = true},
    {.family = ModelFamily::qwen3,
     .model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .kv_heads = 32,
     .head_dim = 128,
     .positions = 32768,
     .window = 4096,
     .window_switch = true,
     .window_by_layer = true,
     .attention_bias = true,
     .qk_norm = true},
    {.family = ModelFamily::qwen3_moe,
     .model_type = "qwen3_moe",
     .architecture = "Qwen3MoeForCausalLM",
     .kv_heads = 4,
     .positions = 32768,
     .window = 4096,
     .window_switch = true,
     .attention_bias = true,
     .qk_norm = true,
     .experts = true},
    {.family = ModelFamily::mixtral,
     .model_type = "mixtral",
     .architecture = "MixtralForCausalLM",
     .kv_heads = 8,
     .positions = 131072,
     .norm_eps = 1e-5,
     .theta = 1e6,
     .experts = true},
    {.family = ModelFamily::deepseek_v3,
     .model_type = "deepseek_v3",
     .architecture = "DeepseekV3ForCausalLM",
     .positions = 4096,
     .windows = false,
     .attention_bias = true},
    {.family = ModelFamily::olmo2,
     .model_type = "olmo2",
     .architecture = "Olmo2ForCausalLM",
     .positions = 2048,
     .norm_eps = 1e-5,
     .windows = false,
     .attention_bias = true,
     .qk_norm = true},
    {.family = ModelFamily::glm4_moe,
     .model_type = "glm4_moe",
     .architecture = "Glm4MoeForCausalLM",
     .kv_heads = 8,
     .positions = 131072,
     .norm_eps = 1e-5,
     .windows = false,
     .attention_bias = true},
    {.family = ModelFamily::olmo3,
     .model_type = "olmo3",
     .architecture = "Olmo3ForCausalLM",
     .positions = 2048,
     .norm_eps = 1e-5,
     .theta = 500000,
     .window = 4096,
     .window_pattern = 4,
     .window_theta = 500000,
     .rope_by_kind = true,
     .attention_bias = true,
     .qk_norm = true},
    {.family = ModelFamily::gpt_oss,
     .model_type = "gpt_oss",
     .architecture = "GptOssForCausalLM",
     .kv_heads = 8,
     .head_dim = 64,
     .positions = 131072,
     .norm_eps = 1e-5,
     .theta = 150000,
     .window = 128,
     .window_pattern = 2,
     .attention_bias = true,
     .attention_bias_default = true,
     .experts = true},
    gemma3("gemma3_text"),
    // Text alone, as the configuration of the model with images may be named.
    gemma3("gemma3"),
    // Defaults of the makers' own class, which is DeepSeek-V3's.
    {.family = ModelFamily::kimi_k2,
     .model_type = "kimi_k2",
     .architecture = "DeepseekV3ForCausalLM",
     .positions = 4096,
     .windows = false,
     .attention_bias = true},
};

}  // namespace sherd::hf
