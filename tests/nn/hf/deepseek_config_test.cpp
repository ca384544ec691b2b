// config.json of deepseek_v3 and kimi_k2.
#include <nlohmann/json.hpp>

#include <sherd/base/error.h>

#include <sherd/nn/hf/model_config.h>
#include "support/message_of.h"

namespace sherd::hf {
namespace {

using nlohmann::json;
using nn::ModelDescription;

/// The published file, without keys that only other programs read.
json deepseek() {
  return {{"model_type", "deepseek_v3"},
          {"vocab_size", 129280},
          {"hidden_size", 7168},
          {"num_hidden_layers", 61},
          {"num_attention_heads", 128},
          {"num_key_value_heads", 128},
          {"intermediate_size", 18432},
          {"moe_intermediate_size", 2048},
          {"n_routed_experts", 256},
          {"n_shared_experts", 1},
          {"num_experts_per_tok", 8},
          {"n_group", 8},
          {"topk_group", 4},
          {"first_k_dense_replace", 3},
          {"q_lora_rank", 1536},
          {"kv_lora_rank", 512},
          {"qk_nope_head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"v_head_dim", 128},
          {"norm_topk_prob", true},
          {"routed_scaling_factor", 2.5},
          {"max_position_embeddings", 163840},
          {"rope_theta", 10000},
          {"moe_layer_freq", 1},
          {"scoring_func", "sigmoid"},
          {"topk_method", "noaux_tc"},
          {"rope_scaling",
           {{"type", "yarn"},
            {"factor", 40},
            {"beta_fast", 32},
            {"beta_slow", 1},
            {"mscale", 1.0},
            {"mscale_all_dim", 1.0},
            {"original_max_position_embeddings", 4096}}}};
}

ModelConfig parsed_deepseek(const json& more) {
  json c = deepseek();
  if (!more.is_null()) c.update(more);
  return parse_model_config(c.dump(), "in/config.json");
}
std::string refusal_of(const json& more) {
  const std::string message = message_of<InvalidArgument>([&] { parsed_deepseek(more); });
  EXPECT_EQ(message.find('\n'), message.npos) << message;
  return message;
}

TEST(DeepseekConfig, IsReadAsPublished) {
  const ModelDescription d = parsed_deepseek({}).description;
  EXPECT_EQ(d.latent, (nn::LatentDescription{512, 1536, 128, 64, 128, true}));
  EXPECT_EQ(d.head_dim, 192);
  EXPECT_EQ(d.kv_heads, 128);
  EXPECT_EQ(d.hidden, 18432);
  EXPECT_EQ(d.mixture, (nn::MixtureDescription{.experts = 256,
                                               .top_k = 8,
                                               .hidden = 2048,
                                               .dense_layers = 3,
                                               .shared = 1,
                                               .groups = 8,
                                               .top_groups = 4,
                                               .scaling = 2.5}));
  EXPECT_EQ(d.rope.scaling.type, RopeType::yarn);
  EXPECT_EQ(d.rope.scaling.factor, 40);
  EXPECT_EQ(d.rope.scaling.rotation_scale(), 1);
  EXPECT_NEAR(d.rope.scaling.score_scale(), 1.8738, 1e-4);  // (0.1 ln 40 + 1)^2
  const ModelDescription kimi =
      parsed_deepseek(
          {{"model_type", "kimi_k2"}, {"n_group", 1}, {"topk_group", 1}, {"q_lora_rank", nullptr}})
          .description;
  EXPECT_EQ(kimi.family, nn::ModelFamily::kimi_k2);
  EXPECT_EQ(kimi.latent.q_rank, 0);
}

TEST(DeepseekConfig, WhatIsNotComputedIsRefusedByItsKey) {
  const std::pair<const char*, json> refused[] = {{"scoring_func", "softmax"},
                                                  {"topk_method", "greedy"},
                                                  {"moe_layer_freq", 2},
                                                  {"num_key_value_heads", 8},
                                                  {"qk_rope_head_dim", 63},
                                                  {"head_dim", 32},
                                                  {"first_k_dense_replace", 61},
                                                  {"n_group", 7},
                                                  {"topk_group", 9},
                                                  {"hidden_act", "gelu"},
                                                  {"kv_lora_rank", 0},
                                                  {"routed_scaling_factor", 0},
                                                  {"quantization_config", {{"quant_method", "fp8"}}}};
  for (const auto& [key, value] : refused)
    EXPECT_THAT(refusal_of({{key, value}}), HasSubstr("\"" + std::string(key) + "\" is ")) << key;
  EXPECT_THAT(refusal_of({{"rope_scaling", {{"type", "linear"}, {"factor", 4}, {"mscale_all_dim", 1}}}}),
              HasSubstr("rope_scaling.mscale_all_dim"));
  EXPECT_THAT(refusal_of({{"rope_scaling", {{"type", "yarn"}, {"factor", 4}, {"beta_slow", 64}}}}),
              HasSubstr("beta_slow"));
}

// Same as the classes of transformers: DeepSeek-V3's computes with null as with false, GLM's has no null.
TEST(DeepseekConfig, NullsAreFalseWhereTheClassComputesWithThem) {
  const ModelDescription d =
      parsed_deepseek({{"rope_interleave", nullptr}, {"norm_topk_prob", nullptr}}).description;
  EXPECT_FALSE(d.latent.interleaved);
  EXPECT_FALSE(d.mixture.normalise);
  json absent = deepseek();
  absent.erase("norm_topk_prob");
  const ModelDescription e = parse_model_config(absent.dump(), "in/config.json").description;
  EXPECT_TRUE(e.latent.interleaved && e.mixture.normalise);
}

json glm() {
  return {{"model_type", "glm4_moe"},   {"vocab_size", 97},          {"hidden_size", 64},
          {"num_hidden_layers", 2},     {"num_attention_heads", 32}, {"intermediate_size", 48},
          {"moe_intermediate_size", 8}, {"n_routed_experts", 128},   {"head_dim", 96},
          {"attention_bias", true}};
}

TEST(GlmConfig, HasTheMixtureAndAPartOfEachHeadRotated) {
  const ModelDescription d = parse_model_config(glm().dump(), "in/config.json").description;
  EXPECT_EQ(d.mixture, (nn::MixtureDescription{
                           .experts = 128, .top_k = 8, .hidden = 8, .dense_layers = 1, .shared = 1}));
  EXPECT_TRUE(d.qkv_bias && !d.out_bias && !d.qk_norm);
  EXPECT_EQ(d.kv_heads, 8);
  EXPECT_EQ(d.rope.columns, 48);
  json odd = glm();
  odd["head_dim"] = 98;
  odd["rope_parameters"] = {
      {"rope_type", "default"}, {"rope_theta", 10000.0}, {"partial_rotary_factor", 0.1}};
  EXPECT_THAT(message_of<InvalidArgument>([&] { parse_model_config(odd.dump(), "c.json"); }),
              HasSubstr("9 of the 98 columns"));
  // 14 / 98 of 98 columns are 13.99 in binary.
  for (const double part : {0.5, 14.5 / 98, 1.0}) {
    json c = glm();
    if (part != 0.5) c["head_dim"] = 98;
    c["rope_parameters"] = {
        {"rope_type", "default"}, {"rope_theta", 10000.0}, {"partial_rotary_factor", part}};
    const ModelDescription m = parse_model_config(c.dump(), "c.json").description;
    EXPECT_EQ(m.rope.columns, part == 0.5 ? 48 : part == 1 ? 0 : 14);
    const std::string text = model_config_text(m, DType::f32);
    EXPECT_EQ(parse_model_config(text, "written").description.rope.columns, m.rope.columns);
    EXPECT_EQ(parse_model_config(text, "written").description.mixture, m.mixture);
  }
}

TEST(GlmConfig, ScalingsAreOfTheRotatedPart) {
  json c = glm();
  c["norm_topk_prob"] = nullptr;
  const std::vector<double> factors(12, 1.5);
  for (const json& rope :
       {json{{"rope_type", "yarn"}, {"factor", 4}}, json{{"type", "linear"}, {"factor", 4}},
        json{{"rope_type", "longrope"}, {"short_factor", factors}, {"long_factor", factors}}})
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      json of = c;
      of[key] = rope;
      of["partial_rotary_factor"] = 0.25;  // 24 of 96 columns
      const ModelDescription d = parse_model_config(of.dump(), "c.json").description;
      EXPECT_EQ(d.rope.columns, 24);
      EXPECT_NE(d.rope.scaling.type, RopeType::plain);
      EXPECT_TRUE(d.mixture.normalise) << "null is the default";
      EXPECT_EQ(parse_model_config(model_config_text(d, DType::f32), "written").description.rope, d.rope);
    }
}

TEST(DeepseekConfig, WhatTrainingDoesNotFollowIsNoted) {
  EXPECT_THAT(parsed_deepseek({}).notes, IsEmpty());
  EXPECT_THAT(parsed_deepseek({{"aux_loss_alpha", 0.001}}).notes, ElementsAre(HasSubstr("--moe-aux 0.001")));
}

TEST(DeepseekConfig, AHeadForMultiTokenPredictionIsBuiltWhereTheCallerWantsIt) {
  const ModelConfig config = parsed_deepseek({{"num_nextn_predict_layers", 1}});
  EXPECT_EQ(config.mtp_layers, 1);
  EXPECT_EQ(config.description.mtp_layers, 0);
  EXPECT_EQ(parsed_deepseek({}).mtp_layers, 0);
  ModelDescription d = config.description;
  d.mtp_layers = 1;
  EXPECT_EQ(parse_model_config(model_config_text(d, DType::f32), "written").mtp_layers, 1);
}

TEST(DeepseekConfig, WhatIsWrittenIsReadBack) {
  for (const json& more :
       {json{}, json{{"q_lora_rank", nullptr}, {"rope_interleave", false}, {"rope_scaling", nullptr}},
        json{{"rope_scaling",
              {{"type", "yarn"}, {"factor", 4}, {"attention_factor", 2}, {"truncate", false}}}},
        json{{"rope_scaling", {{"type", "linear"}, {"factor", 4}}}},
        json{{"model_type", "kimi_k2"}, {"n_shared_experts", nullptr}, {"attention_bias", true}}}) {
    const ModelDescription d = parsed_deepseek(more).description;
    const std::string text = model_config_text(d, DType::bf16);
    const ModelConfig again = parse_model_config(text, "written");
    EXPECT_THAT(again.notes, IsEmpty());
    EXPECT_EQ(model_config_text(again.description, DType::bf16), text);
    EXPECT_EQ(again.description.latent, d.latent);
    EXPECT_EQ(again.description.mixture, d.mixture);
    EXPECT_EQ(again.description.rope, d.rope);
    EXPECT_EQ(again.description.qkv_bias, d.qkv_bias);
  }
}

}  // namespace
}  // namespace sherd::hf
