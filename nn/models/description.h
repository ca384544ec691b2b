// Description of a decoder-only language model of any family: plain data, known before the model is built.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/nn/kernels/rope/frequencies.h>

namespace sherd::nn {

/// The families that causal_model() builds, by the names that Hugging Face's config.json gives them in
/// `model_type`; byte_gpt is train_gpt's own.
enum class ModelFamily {
  gpt2,
  llama,
  mistral,
  qwen2,
  qwen3,
  qwen3_moe,
  mixtral,
  deepseek_v3,
  kimi_k2,
  olmo2,
  glm4_moe,
  olmo3,
  gemma3,
  gpt_oss,
  byte_gpt
};
std::string_view to_string(ModelFamily family);

/// Rotary embedding; see rope(). Unused by gpt2 and byte_gpt, whose positions are learned.
struct RopeDescription {
  double theta = 10000;
  int64_t columns = 0;  // of a head that are rotated [partial_rotary_factor]; 0: all
  RopeScaling scaling{};
  bool operator==(const RopeDescription&) const = default;
};

/// Multi-head latent attention; see latent_attention(). Sizes as in config.json.
struct LatentDescription {
  int64_t kv_rank = 0;  // [kv_lora_rank]; 0: heads have keys of their own
  int64_t q_rank = 0;   // [q_lora_rank]; 0: queries come from the rows themselves
  int64_t nope = 0;     // [qk_nope_head_dim]: columns of a key without positions
  int64_t rope = 0;   // [qk_rope_head_dim]: further columns with rotary positions, one key part for all heads
  int64_t value = 0;  // [v_head_dim]
  bool interleaved = true;  // [rope_interleave]: components 2i and 2i + 1 are a pair, not i and i + rope / 2
  bool operator==(const LatentDescription&) const = default;
};

/// Experts in the place of every block's MLP; see route_top_k(), and where routes_in_groups() route_in_groups().
struct MixtureDescription {
  int64_t experts = 0;  // 0: dense blocks
  int64_t top_k = 0;    // of each token
  int64_t hidden = 0;   // columns between gate/up and down of one expert
  /// Gates are divided by their sum (norm_topk_prob; mixtral always).
  bool normalise = true;
  /// Weight of the balancing loss (router_aux_loss_coef); see LoadBalancing.
  double balance = 0;
  // The rest is of families with routes_in_groups().
  int64_t dense_layers = 0;  // [first_k_dense_replace]: leading blocks with a dense MLP
  int64_t shared = 0;      // [n_shared_experts]: columns of the MLP that all rows take, in units of `hidden`
  int64_t groups = 1;      // [n_group], divides experts
  int64_t top_groups = 1;  // [topk_group]: groups in which a row may choose
  double scaling = 1;      // [routed_scaling_factor], of all gates
  /// Change of an expert's selection bias in each step; 0: the biases stay. See update_selection_bias().
  double bias_speed = 0;
  bool operator==(const MixtureDescription&) const = default;
};

/// Sizes as in config.json, in brackets its keys.
struct ModelDescription {
  ModelFamily family = ModelFamily::llama;
  int64_t vocab = 0;     // [vocab_size]
  int64_t dim = 0;       // [hidden_size, n_embd]
  int64_t layers = 0;    // [num_hidden_layers, n_layer]
  int64_t heads = 0;     // [num_attention_heads, n_head]
  int64_t kv_heads = 0;  // [num_key_value_heads], divides heads
  int64_t head_dim = 0;  // [head_dim], or dim / heads; of latent attention nope + rope
  int64_t hidden = 0;    // [intermediate_size, n_inner], of the dense MLP
  int64_t positions =
      0;  // [max_position_embeddings, n_positions]: the longest sequence; the learned positions
  float norm_eps = 1e-6f;  // [rms_norm_eps, layer_norm_epsilon]
  bool tied = false;       // [tie_word_embeddings]: the head is the embedding's table
  bool qkv_bias = false;   // qwen2, gpt2; [attention_bias]
  bool out_bias = false;   // of the projection behind attention: gpt2; [attention_bias] of llama
  bool mlp_bias = false;   // gpt2; [mlp_bias] of llama
  /// Before rope q and k are normalised: of qwen3, qwen3_moe and gemma3 each head, of olmo2 and olmo3 all heads together.
  bool qk_norm = false;
  /// Standard deviation of the first values of matrices [initializer_range].
  float init_std = 0.02f;
  /// [query_pre_attn_scalar], of gemma3: scores are divided by its root; 0: by that of head_dim.
  double query_scalar = 0;
  RopeDescription rope{};
  /// Positions that a row of a block with has_window() sees at most, its own included [sliding_window]. Latent attention
  /// has no windows.
  int64_t window = 0;
  /// Per block, whether it has a window [layer_types]; empty: none has.
  std::vector<bool> windowed{};
  /// Rotary settings of blocks with a window; absent: those of the others.
  std::optional<RopeDescription> window_rope{};
  MixtureDescription mixture{};
  LatentDescription latent{};
  /// Heads for multi-token prediction, 0 or 1 [num_nextn_predict_layers], of families with routes_in_groups().
  /// Every forward in training then takes NextTokens.
  int64_t mtp_layers = 0;

  /// Returns whether block `layer` has experts.
  bool has_experts(int64_t layer) const { return mixture.experts > 0 && layer >= mixture.dense_layers; }
  bool has_window(int64_t layer) const {
    return layer < static_cast<int64_t>(windowed.size()) && windowed[static_cast<size_t>(layer)];
  }
  /// Columns of a head that rotary settings of this model turn.
  int64_t rotated(const RopeDescription& of) const {
    return latent.kv_rank > 0 ? latent.rope : of.columns > 0 ? of.columns : head_dim;
  }
  /// Returns whether the angles of `all` positions differ from those of the `kept` first ones alone; see
  /// RopeScaling::is_long().
  bool changes_angles(int64_t kept, int64_t all) const {
    const auto changes = [&](const RopeDescription& r) {
      return r.scaling.is_long(all) && !r.scaling.is_long(kept);
    };
    return kept > 0 && (changes(rope) || (window_rope && changes(*window_rope)));
  }
};

/// DeepSeek-V3's architecture (DeepSeek-AI, 2024, arXiv 2412.19437), which Kimi K2 (2025, arXiv 2507.20534) shares.
inline bool is_deepseek(const ModelDescription& d) {
  return d.family == ModelFamily::deepseek_v3 || d.family == ModelFamily::kimi_k2;
}
/// Experts as in DeepSeek-V3: chosen by route_in_groups(), with a selection bias, dense layers and shared experts. GLM-4.5
/// (GLM team, 2025, arXiv 2508.06471) has them behind attention with keys of its own.
inline bool routes_in_groups(const ModelDescription& d) {
  return is_deepseek(d) || d.family == ModelFamily::glm4_moe;
}
/// OLMo 2 (OLMo team, 2024, arXiv 2501.00656): norms behind attention and MLP, inside the residual branch. OLMo 3 (2025)
/// has windows besides.
inline bool is_olmo(const ModelDescription& d) {
  return d.family == ModelFamily::olmo2 || d.family == ModelFamily::olmo3;
}
/// Gemma 3 (Gemma team, 2025, arXiv 2503.19786): norms before and behind attention and MLP, with weights that are distances
/// from 1; embeddings times sqrt(dim), rounded to their dtype; a gated GELU.
inline bool is_gemma(const ModelDescription& d) { return d.family == ModelFamily::gemma3; }
/// gpt-oss (OpenAI, 2025, arXiv 2508.10925): attention sinks, biases of attention, router and experts, clamped_swiglu().
inline bool is_gpt_oss(const ModelDescription& d) { return d.family == ModelFamily::gpt_oss; }
/// The GPT of train_gpt: RMSNorm without biases, learned positions, one matrix of queries, keys and values, gelu without a
/// gate, a table of tokens that tensor-parallel ranks hold whole. Its experts have biases.
inline bool is_byte_gpt(const ModelDescription& d) { return d.family == ModelFamily::byte_gpt; }
/// GPTs have learned positions, MLPs of two matrices, and smaller first values of matrices that add to the residual stream.
inline bool is_gpt(const ModelDescription& d) { return d.family == ModelFamily::gpt2 || is_byte_gpt(d); }

}  // namespace sherd::nn
