// config.json of families with windows in some blocks: olmo3, gemma3 and gpt_oss.
#include <nlohmann/json.hpp>

#include <sherd/base/error.h>

#include <sherd/nn/hf/model_config.h>
#include "support/message_of.h"

namespace sherd::hf {
namespace {

using nlohmann::json;
using nn::ModelDescription;

/// The published file, without keys that only other programs read.
json olmo3() {
  return {{"model_type", "olmo3"},
          {"vocab_size", 100278},
          {"hidden_size", 4096},
          {"num_hidden_layers", 5},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 32},
          {"intermediate_size", 11008},
          {"max_position_embeddings", 65536},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 500000},
          {"sliding_window", 4096},
          {"rope_scaling",
           {{"attention_factor", 1.2079441541679836},
            {"beta_fast", 32},
            {"beta_slow", 1},
            {"factor", 8.0},
            {"original_max_position_embeddings", 8192},
            {"rope_type", "yarn"}}}};
}

ModelDescription windows_of(json c, const json& more = json::object()) {
  c.update(more);
  return parse_model_config(c.dump(), "in/config.json").description;
}
std::string windows_refused(const json& c, const json& more) {
  const std::string message = message_of<InvalidArgument>([&] { windows_of(c, more); });
  EXPECT_EQ(message.find('\n'), message.npos) << message;
  return message;
}

TEST(Olmo3Config, IsReadAsPublished) {
  const ModelDescription d = windows_of(olmo3());
  EXPECT_THAT(d.windowed, ElementsAre(true, true, true, false, true)) << "every fourth block has none";
  EXPECT_EQ(d.window, 4096);
  EXPECT_TRUE(d.has_window(4) && !d.has_window(3) && d.qk_norm && !d.qkv_bias);
  ASSERT_TRUE(d.window_rope);
  EXPECT_EQ(d.rope.scaling.type, RopeType::yarn);
  EXPECT_EQ(d.rope.scaling.rotation_scale(), 1.2079441541679836);
  EXPECT_EQ(d.window_rope->theta, 500000);
  EXPECT_EQ(d.window_rope->scaling, RopeScaling{}) << "blocks with a window are not stretched";
}

TEST(Olmo3Config, SettingsByKindOfBlockAreThoseOfTransformers5) {
  json c = olmo3();
  c.erase("rope_scaling");
  c.erase("rope_theta");
  const json kinds = {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 7e5}}},
                      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 3e4}}}};
  const ModelDescription d = windows_of(c, {{"rope_parameters", kinds},
                                            {"num_hidden_layers", 2},
                                            {"layer_types", {"full_attention", "sliding_attention"}}});
  EXPECT_EQ(d.rope.theta, 7e5);
  EXPECT_EQ(d.window_rope->theta, 3e4);
  EXPECT_THAT(d.windowed, ElementsAre(false, true));
  const ModelDescription none = windows_of(
      c, {{"num_hidden_layers", 1}, {"layer_types", {"full_attention"}}, {"sliding_window", nullptr}});
  EXPECT_THAT(none.windowed, IsEmpty());
  EXPECT_EQ(none.window, 0);
}

TEST(Olmo3Config, SequencesMayBeLongerThanTheWindow) {
  const ModelConfig c = parse_model_config(olmo3().dump(), "in/config.json");
  require_sequence(c, 8192);
  EXPECT_THAT(message_of<InvalidArgument>([&] { require_sequence(c, 65537); }),
              HasSubstr("max_position_embeddings"));
}

TEST(Olmo3Config, WhatIsNotComputedIsRefusedByItsKey) {
  EXPECT_THAT(windows_refused(olmo3(), {{"layer_types", {"full_attention"}}}), HasSubstr("has 5 blocks"));
  EXPECT_THAT(windows_refused(olmo3(), {{"num_hidden_layers", 1}, {"layer_types", {"chunked_attention"}}}),
              HasSubstr("chunked_attention"));
  EXPECT_THAT(windows_refused(olmo3(), {{"sliding_window", nullptr}}), HasSubstr("need a window"));
  EXPECT_THAT(windows_refused(olmo3(), {{"sliding_window", 0}}), HasSubstr("\"sliding_window\" is 0"));
  EXPECT_THAT(windows_refused(olmo3(), {{"rope_theta", 10000}}), HasSubstr("write rope_parameters by kind"));
  EXPECT_THAT(windows_refused(olmo3(), {{"rope_parameters", {{"rope_theta", 10000}}}}),
              HasSubstr("an object \"full_attention\""));
  EXPECT_THAT(windows_refused(olmo3(), {{"rope_scaling", {{"rope_type", "proportional"}, {"factor", 2}}}}),
              HasSubstr("\"rope_scaling.rope_type\" is \"proportional\""));
  EXPECT_THAT(
      windows_refused(olmo3(), {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}}),
      HasSubstr("rope_parameters.full_attention says otherwise"));
  json bounds = olmo3()["rope_scaling"];
  bounds["truncate"] = false;
  EXPECT_THAT(windows_refused(olmo3(), {{"rope_scaling", bounds}}), HasSubstr("truncate"));
}

TEST(Olmo3Config, WhatIsWrittenIsReadBack) {
  for (const json& more :
       {json::object(),
        json{{"num_hidden_layers", 3},
             {"layer_types", json::array({"full_attention", "sliding_attention", "full_attention"})},
             {"attention_bias", true}}}) {
    const ModelDescription d = windows_of(olmo3(), more);
    const std::string text = model_config_text(d, DType::bf16);
    const ModelConfig again = parse_model_config(text, "written");
    EXPECT_THAT(again.notes, IsEmpty());
    EXPECT_EQ(model_config_text(again.description, DType::bf16), text);
    EXPECT_EQ(again.description.windowed, d.windowed);
    EXPECT_EQ(again.description.window, d.window);
    EXPECT_EQ(again.description.rope, d.rope);
    EXPECT_EQ(again.description.window_rope, d.window_rope);
  }
}

/// The published file of 27B, without keys that only other programs read.
json gemma3() {
  return {{"model_type", "gemma3_text"},
          {"vocab_size", 262208},
          {"hidden_size", 5376},
          {"num_hidden_layers", 7},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 16},
          {"head_dim", 128},
          {"intermediate_size", 21504},
          {"query_pre_attn_scalar", 168},
          {"hidden_activation", "gelu_pytorch_tanh"},
          {"sliding_window", 1024},
          {"sliding_window_pattern", 6},
          {"rope_theta", 1000000.0},
          {"rope_local_base_freq", 10000.0},
          {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
          {"final_logit_softcapping", nullptr}};
}

TEST(Gemma3Config, IsReadAsPublished) {
  for (const char* type : {"gemma3_text", "gemma3"}) {
    const ModelDescription d = windows_of(gemma3(), {{"model_type", type}});
    EXPECT_THAT(d.windowed, ElementsAre(true, true, true, true, true, false, true));
    EXPECT_EQ(d.window, 1024);
    EXPECT_EQ(d.query_scalar, 168);
    EXPECT_EQ(d.rope.theta, 1e6);
    EXPECT_EQ(d.rope.scaling, (RopeScaling{.type = RopeType::linear, .factor = 8}));
    EXPECT_EQ(d.window_rope, nn::RopeDescription{.theta = 1e4});
    EXPECT_TRUE(d.tied && d.qk_norm && !d.qkv_bias);
  }
}

// Same as transformers 5: "type" is not read where "rope_type" is missing in "rope_scaling". Inside of
// "rope_parameters" both are.
TEST(Gemma3Config, TheOldSpellingOfRopeScalingIsOfNoEffectAndNoted) {
  for (const json& of : {gemma3(), olmo3()}) {
    json c = of;
    c["rope_scaling"] = {{"type", "linear"}, {"factor", 8.0}};
    const ModelConfig config = parse_model_config(c.dump(), "in/config.json");
    EXPECT_EQ(config.description.rope.scaling, RopeScaling{});
    EXPECT_THAT(config.notes, ElementsAre(AllOf(HasSubstr("\"rope_scaling.type\" is \"linear\""),
                                                HasSubstr("write \"rope_type\""))));
    c.erase("rope_scaling");
    for (const char* key : {"type", "rope_type"}) {
      c["rope_parameters"] = {{"full_attention", {{key, "linear"}, {"factor", 8.0}}},
                              {"sliding_attention", {{key, "dynamic"}, {"factor", 2.0}}}};
      const ModelDescription d = windows_of(c);
      EXPECT_EQ(d.rope.scaling, (RopeScaling{.type = RopeType::linear, .factor = 8}));
      EXPECT_EQ(d.window_rope->scaling, (RopeScaling{.type = RopeType::dynamic, .factor = 2}));
      const ModelDescription e = parse_model_config(model_config_text(d, DType::f32), "written").description;
      EXPECT_EQ(std::tie(e.rope, e.window_rope), std::tie(d.rope, d.window_rope));
    }
  }
}

TEST(Gemma3Config, WhatIsAbsentIsWhatTheClassTakes) {
  const ModelDescription d = windows_of({{"model_type", "gemma3_text"},
                                         {"vocab_size", 97},
                                         {"hidden_size", 64},
                                         {"num_hidden_layers", 6},
                                         {"num_attention_heads", 8},
                                         {"intermediate_size", 48}});
  EXPECT_EQ(std::tuple(d.kv_heads, d.head_dim, d.positions, d.window), std::tuple(4, 256, 131072, 4096));
  EXPECT_EQ(std::tuple(d.rope.theta, d.window_rope->theta, d.query_scalar), std::tuple(1e6, 1e4, 256.0));
  EXPECT_TRUE(d.tied && !d.has_window(5) && d.has_window(4));
}

TEST(Gemma3Config, WhatIsNotComputedIsRefusedByItsKey) {
  EXPECT_THAT(windows_refused(gemma3(), {{"final_logit_softcapping", 30.0}}), HasSubstr("soft-capping"));
  EXPECT_THAT(windows_refused(gemma3(), {{"attn_logit_softcapping", 50.0}}), HasSubstr("soft-capping"));
  EXPECT_THAT(windows_refused(gemma3(), {{"use_bidirectional_attention", true}}), HasSubstr("causal"));
  EXPECT_THAT(windows_refused(gemma3(), {{"hidden_activation", "silu"}}), HasSubstr("gelu_pytorch_tanh"));
  EXPECT_THAT(windows_refused(gemma3(), {{"rope_scaling", {{"factor", 8.0}, {"rope_type", "su"}}}}),
              HasSubstr("linear"));
  EXPECT_EQ(windows_refused(json{{"model_type", "gemma3"}, {"text_config", {{"model_type", "gemma3_text"}}}},
                            json::object())
                .find("vocab_size"),
            std::string::npos);
}

TEST(Gemma3Config, WhatIsWrittenIsReadBack) {
  for (const json& more : {json::object(), json{{"rope_scaling", nullptr}, {"query_pre_attn_scalar", 128}},
                           json{{"tie_word_embeddings", false}, {"attention_bias", true}}}) {
    const ModelDescription d = windows_of(gemma3(), more);
    const std::string text = model_config_text(d, DType::bf16);
    const ModelDescription e = parse_model_config(text, "written").description;
    EXPECT_EQ(model_config_text(e, DType::bf16), text);
    EXPECT_EQ(std::tie(e.windowed, e.window, e.query_scalar, e.rope, e.window_rope, e.tied),
              std::tie(d.windowed, d.window, d.query_scalar, d.rope, d.window_rope, d.tied));
    EXPECT_EQ(json::parse(text)["model_type"], "gemma3_text");
  }
}

/// The published file, without keys that only other programs read and without the quantisation.
json gpt_oss() {
  return {{"model_type", "gpt_oss"},
          {"vocab_size", 201088},
          {"hidden_size", 2880},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 64},
          {"num_key_value_heads", 8},
          {"head_dim", 64},
          {"intermediate_size", 2880},
          {"num_local_experts", 32},
          {"num_experts_per_tok", 4},
          {"sliding_window", 128},
          {"swiglu_limit", 7.0},
          {"rope_theta", 150000},
          {"rope_scaling",
           {{"beta_fast", 32.0},
            {"beta_slow", 1.0},
            {"factor", 32.0},
            {"original_max_position_embeddings", 4096},
            {"rope_type", "yarn"},
            {"truncate", false}}}};
}

TEST(GptOssConfig, IsReadAsPublishedAndWithoutRotarySettings) {
  json bare = gpt_oss();
  for (const char* key : {"rope_theta", "rope_scaling", "sliding_window", "num_experts_per_tok"})
    bare.erase(key);
  for (const json& c : {gpt_oss(), bare}) {
    const ModelDescription d = windows_of(c);
    EXPECT_THAT(d.windowed, ElementsAre(true, false, true));
    EXPECT_EQ(d.window, 128);
    EXPECT_EQ(d.mixture, (nn::MixtureDescription{.experts = 32, .top_k = 4, .hidden = 2880}));
    EXPECT_TRUE(d.qkv_bias && d.out_bias && !d.tied && !d.window_rope);
    EXPECT_EQ(d.rope.theta, 150000);
    EXPECT_EQ(d.rope.scaling, (RopeScaling{.type = RopeType::yarn,
                                           .factor = 32,
                                           .original_max_position_embeddings = 4096,
                                           .truncate = false}));
  }
}

TEST(GptOssConfig, WhatIsNotComputedIsRefusedByItsKey) {
  EXPECT_THAT(windows_refused(gpt_oss(), {{"quantization_config", {{"quant_method", "mxfp4"}}}}),
              HasSubstr("Mxfp4Config(dequantize=True)"));
  EXPECT_THAT(windows_refused(gpt_oss(), {{"swiglu_limit", 5.0}}), HasSubstr("\"swiglu_limit\" is 5.0"));
  EXPECT_THAT(windows_refused(gpt_oss(), {{"rope_scaling", {{"rope_type", "llama3"}}}}),
              HasSubstr("\"rope_scaling.factor\" is missing"));
  EXPECT_THAT(windows_refused(gpt_oss(), {{"num_experts_per_tok", 33}}), HasSubstr("32 experts"));
}

TEST(GptOssConfig, WhatIsWrittenIsReadBack) {
  for (const json& more : {json::object(), json{{"attention_bias", false}, {"tie_word_embeddings", true}},
                           json{{"rope_scaling", nullptr},
                                {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e4}}}}}) {
    const ModelDescription d = windows_of(gpt_oss(), more);
    const std::string text = model_config_text(d, DType::bf16);
    const ModelDescription e = parse_model_config(text, "written").description;
    EXPECT_EQ(model_config_text(e, DType::bf16), text);
    EXPECT_EQ(std::tie(e.windowed, e.window, e.mixture, e.qkv_bias, e.tied),
              std::tie(d.windowed, d.window, d.mixture, d.qkv_bias, d.tied));
    EXPECT_EQ(e.rope, d.rope);
  }
}

}  // namespace
}  // namespace sherd::hf
