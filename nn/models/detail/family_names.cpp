#include <sherd/nn/models/detail/family_names.h>

namespace sherd::nn::detail {

const FamilyNames& names_of(ModelFamily family) {
  // For gpt2 the names of q, k and v are this library's: its files have them in one tensor c_attn.
  static constexpr FamilyNames kGpt2{.table = "transformer.wte",
                                     .positions = "transformer.wpe",
                                     .layers = "transformer.h",
                                     .norm1 = "ln_1",
                                     .attention = "attn",
                                     .norm2 = "ln_2",
                                     .mlp = "mlp",
                                     .q = "q_attn",
                                     .k = "k_attn",
                                     .v = "v_attn",
                                     .out = "c_proj",
                                     .up = "c_fc",
                                     .down = "c_proj",
                                     .gate = nullptr,
                                     .norm = "transformer.ln_f",
                                     .head = "lm_head"};
  static constexpr FamilyNames kLlama{.table = "model.embed_tokens",
                                      .positions = nullptr,
                                      .layers = "model.layers",
                                      .norm1 = "input_layernorm",
                                      .attention = "self_attn",
                                      .norm2 = "post_attention_layernorm",
                                      .mlp = "mlp",
                                      .q = "q_proj",
                                      .k = "k_proj",
                                      .v = "v_proj",
                                      .out = "o_proj",
                                      .up = "up_proj",
                                      .down = "down_proj",
                                      .gate = "gate_proj",
                                      .norm = "model.norm",
                                      .head = "lm_head"};
  static constexpr FamilyNames kOlmo2 = [] {
    FamilyNames names = kLlama;
    names.norm1 = names.norm2 = nullptr;
    names.norm1_behind = "post_attention_layernorm";
    names.norm2_behind = "post_feedforward_layernorm";
    return names;
  }();
  static constexpr FamilyNames kGemma = [] {
    FamilyNames names = kOlmo2;
    names.norm1 = "input_layernorm";
    names.norm2 = "pre_feedforward_layernorm";
    return names;
  }();
  static constexpr FamilyNames kByteGpt{.table = "tok",
                                        .positions = "pos",
                                        .layers = "blocks",
                                        .norm1 = "norm1",
                                        .attention = "attention",
                                        .norm2 = "norm2",
                                        .mlp = "moe",
                                        .q = "qkv",
                                        .k = nullptr,
                                        .v = nullptr,
                                        .out = "proj",
                                        .up = "fc",
                                        .down = "out",
                                        .gate = nullptr,
                                        .norm = "norm",
                                        .head = "head",
                                        .flat = true};
  if (family == ModelFamily::byte_gpt) return kByteGpt;
  if (family == ModelFamily::gemma3) return kGemma;
  if (family == ModelFamily::olmo2 || family == ModelFamily::olmo3) return kOlmo2;
  return family == ModelFamily::gpt2 ? kGpt2 : kLlama;
}

}  // namespace sherd::nn::detail
