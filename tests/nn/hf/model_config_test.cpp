// config.json of Hugging Face folders: what is read, what is refused and how, and what is written.
#include <nlohmann/json.hpp>

#include <limits>
#include <string>
#include <vector>

#include <sherd/base/error.h>

#include <sherd/nn/hf/model_config.h>
#include "support/comma_locale.h"
#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd::hf {
namespace {

using nlohmann::json;
using nn::ModelDescription;
using nn::ModelFamily;

/// The sizes that have to be there; everything else is left to the family's class.
json sizes(const std::string& family) {
  if (family == "gpt2")
    return {{"model_type", family}, {"vocab_size", 97}, {"n_embd", 32}, {"n_layer", 2}, {"n_head", 4}};
  json c = {{"model_type", family},   {"vocab_size", 97},          {"hidden_size", 64},
            {"num_hidden_layers", 2}, {"num_attention_heads", 32}, {"intermediate_size", 48}};
  if (family == "qwen3_moe") c.update({{"moe_intermediate_size", 24}, {"num_experts", 128}});
  if (family == "mixtral") c["num_local_experts"] = 8;
  return c;
}
constexpr const char* kFamilyNames[] = {"gpt2",  "llama",     "mistral", "qwen2",
                                        "qwen3", "qwen3_moe", "mixtral", "olmo2"};
constexpr const char* kLlamaKinds[] = {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral", "olmo2"};

ModelConfig parsed(const json& c) { return parse_model_config(c.dump(), "in/config.json"); }
ModelDescription described(const json& c) { return parsed(c).description; }
std::string refusal(const json& c) {
  const std::string message = message_of<InvalidArgument>([&] { parsed(c); });
  EXPECT_EQ(message.find('\n'), message.npos) << message;
  EXPECT_THAT(message, HasSubstr("'in/config.json'"));
  return message;
}
json with(json c, const json& more) {
  c.update(more);
  return c;
}

TEST(ModelConfig, WhatIsAbsentIsWhatTheClassTakes) {
  const ModelDescription gpt2 = described(sizes("gpt2"));
  EXPECT_EQ(gpt2.family, ModelFamily::gpt2);
  EXPECT_EQ(gpt2.dim, 32);
  EXPECT_EQ(gpt2.kv_heads, 4);
  EXPECT_EQ(gpt2.head_dim, 8);
  EXPECT_EQ(gpt2.hidden, 128);
  EXPECT_EQ(gpt2.positions, 1024);
  EXPECT_EQ(gpt2.norm_eps, 1e-5f);
  EXPECT_TRUE(gpt2.tied && gpt2.qkv_bias && gpt2.out_bias && gpt2.mlp_bias && !gpt2.qk_norm);

  struct Row {
    const char* family;
    int64_t kv_heads, head_dim, positions;
    float eps;
    double theta;
    bool qkv_bias, qk_norm;
  };
  for (const Row& row : {Row{"llama", 32, 2, 2048, 1e-6f, 1e4, false, false},
                         Row{"mistral", 8, 2, 131072, 1e-6f, 1e4, false, false},
                         Row{"qwen2", 32, 2, 32768, 1e-6f, 1e4, true, false},
                         Row{"qwen3", 32, 128, 32768, 1e-6f, 1e4, false, true},
                         Row{"qwen3_moe", 4, 2, 32768, 1e-6f, 1e4, false, true},
                         Row{"mixtral", 8, 2, 131072, 1e-5f, 1e6, false, false},
                         Row{"olmo2", 32, 2, 2048, 1e-5f, 1e4, false, true}}) {
    const ModelDescription d = described(sizes(row.family));
    EXPECT_EQ(d.kv_heads, row.kv_heads) << row.family;
    EXPECT_EQ(d.head_dim, row.head_dim) << row.family;
    EXPECT_EQ(d.positions, row.positions) << row.family;
    EXPECT_EQ(d.norm_eps, row.eps) << row.family;
    EXPECT_EQ(d.rope.theta, row.theta) << row.family;
    EXPECT_EQ(d.rope.scaling, RopeScaling{}) << row.family;
    EXPECT_EQ(d.qkv_bias, row.qkv_bias) << row.family;
    EXPECT_EQ(d.qk_norm, row.qk_norm) << row.family;
    EXPECT_FALSE(d.out_bias || d.mlp_bias || d.tied) << row.family;
    EXPECT_EQ(d.init_std, 0.02f) << row.family;
  }
  EXPECT_EQ(described(sizes("llama")).hidden, 48);
  EXPECT_EQ(
      described(sizes("mixtral")).mixture,
      (nn::MixtureDescription{.experts = 8, .top_k = 2, .hidden = 48, .normalise = true, .balance = 0}));
  EXPECT_EQ(
      described(sizes("qwen3_moe")).mixture,
      (nn::MixtureDescription{.experts = 128, .top_k = 8, .hidden = 24, .normalise = false, .balance = 0}));
}

TEST(ModelConfig, WhatIsThereIsRead) {
  const ModelDescription d = described(with(sizes("llama"), {{"num_key_value_heads", 4},
                                                             {"head_dim", 6},
                                                             {"max_position_embeddings", 77},
                                                             {"rms_norm_eps", 1e-4},
                                                             {"attention_bias", true},
                                                             {"mlp_bias", true},
                                                             {"tie_word_embeddings", true},
                                                             {"initializer_range", 0.1},
                                                             {"dtype", "bfloat16"},
                                                             {"a key of tomorrow", {1, 2}}}));
  EXPECT_EQ(d.kv_heads, 4);
  EXPECT_EQ(d.head_dim, 6);
  EXPECT_EQ(d.positions, 77);
  EXPECT_EQ(d.norm_eps, 1e-4f);
  EXPECT_TRUE(d.qkv_bias && d.out_bias && d.mlp_bias && d.tied);
  EXPECT_EQ(d.init_std, 0.1f);
  // null is as good as absent: as many key heads as heads.
  EXPECT_EQ(
      described(with(sizes("mistral"), {{"num_key_value_heads", nullptr}, {"head_dim", nullptr}})).kv_heads,
      32);
  // qwen2 has biases on q, k and v whatever it says, and none on o.
  EXPECT_TRUE(described(with(sizes("qwen2"), {{"attention_bias", false}})).qkv_bias);
  EXPECT_FALSE(described(sizes("qwen2")).out_bias);

  EXPECT_EQ(parsed(with(sizes("llama"), {{"dtype", "bfloat16"}})).dtype, DType::bf16);
  EXPECT_EQ(parsed(with(sizes("llama"), {{"torch_dtype", "float16"}})).dtype, DType::f16);
  EXPECT_EQ(parsed(with(sizes("gpt2"), {{"torch_dtype", "float32"}})).dtype, DType::f32);
  EXPECT_EQ(parsed(sizes("gpt2")).dtype, std::nullopt);

  // The balancing loss is part of the model's only where its logits are asked for.
  for (const bool on : {false, true}) {
    const auto c = with(sizes("mixtral"), {{"router_aux_loss_coef", 0.5}, {"output_router_logits", on}});
    EXPECT_EQ(described(c).mixture.balance, on ? 0.5 : 0);
  }
  json both = sizes("qwen3_moe");
  both.erase("num_experts");
  EXPECT_EQ(described(with(both, {{"num_local_experts", 16}, {"norm_topk_prob", true}})).mixture.experts, 16);
  EXPECT_THAT(refusal(with(sizes("qwen3_moe"), {{"num_local_experts", 16}})),
              HasSubstr("\"num_experts\" is 128"));
}

TEST(ModelConfig, BothFormsOfRotarySettings) {
  const json scaling = {{"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 32}};
  for (const char* family : kLlamaKinds) {
    EXPECT_EQ(described(with(sizes(family), {{"rope_theta", 5e5}, {"rope_scaling", nullptr}})).rope.theta,
              5e5);
    EXPECT_EQ(described(with(sizes(family), {{"rope_theta", 500000}})).rope.theta, 5e5) << "an integer";
    const auto v5 = json{{"rope_theta", 7e5}, {"rope_type", "default"}};
    EXPECT_EQ(described(with(sizes(family), {{"rope_parameters", v5}})).rope.theta, 7e5);
    EXPECT_EQ(described(with(sizes(family), {{"rope_parameters", v5}, {"rope_theta", 1}})).rope.theta, 7e5);
    for (const char* type_key : {"rope_type", "type"}) {
      for (const char* key : {"rope_parameters", "rope_scaling"}) {
        json rope = scaling;
        rope[type_key] = "llama3";
        const ModelDescription d = described(with(sizes(family), {{key, rope}, {"rope_theta", 3e5}}));
        EXPECT_EQ(d.rope.theta, 3e5);
        EXPECT_EQ(d.rope.scaling, (RopeScaling{.type = RopeType::llama3,
                                               .factor = 8,
                                               .original_max_position_embeddings = 32,
                                               .low_freq_factor = 1,
                                               .high_freq_factor = 4}));
      }
    }
  }
  const auto rope = [&](const json& settings, const char* key = "rope_parameters") {
    return refusal(with(sizes("llama"), {{key, settings}}));
  };
  EXPECT_THAT(rope({{"rope_type", "proportional"}, {"factor", 2}}),
              AllOf(HasSubstr("\"rope_parameters.rope_type\" is \"proportional\""),
                    HasSubstr("default, linear, dynamic, llama3, yarn, longrope")));
  EXPECT_THAT(rope({{"type", "su"}, {"factor", 2}}, "rope_scaling"), HasSubstr("\"rope_scaling.type\""));
  EXPECT_THAT(rope({{"partial_rotary_factor", 0.5}}),
              HasSubstr("\"rope_parameters.partial_rotary_factor\" is 0.5"));
  EXPECT_THAT(refusal(with(sizes("llama"), {{"partial_rotary_factor", 0.25}})),
              HasSubstr("\"partial_rotary_factor\" is 0.25"));
  EXPECT_THAT(rope({{"full_attention", {{"rope_theta", 1}}}, {"sliding_attention", {{"rope_theta", 2}}}}),
              HasSubstr("by kind of block"));
  EXPECT_THAT(rope({{"rope_type", "llama3"}}),
              AllOf(HasSubstr("\"rope_parameters.factor\" is missing"), HasSubstr("low_freq_factor"),
                    HasSubstr("high_freq_factor")));
  json bent = scaling;
  bent.update({{"rope_type", "llama3"}, {"low_freq_factor", 4}});
  EXPECT_THAT(rope(bent), HasSubstr("\"rope_parameters.low_freq_factor\" is 4: it must be smaller"));
  EXPECT_THAT(rope("llama3"), HasSubstr("\"rope_parameters\" is \"llama3\": an object is needed"));
  EXPECT_THAT(rope({{"rope_theta", 0}}), HasSubstr("\"rope_parameters.rope_theta\" is 0"));
}

// Every type in both forms; absent keys have transformers' defaults.
TEST(ModelConfig, ScalingsOfAllTypesAreRead) {
  const std::pair<json, RopeScaling> cases[] = {
      {{{"rope_type", "linear"}, {"factor", 2}}, {.type = RopeType::linear, .factor = 2}},
      {{{"rope_type", "dynamic"}, {"factor", 3.5}}, {.type = RopeType::dynamic, .factor = 3.5}},
      {{{"rope_type", "yarn"}, {"factor", 4}},
       {.type = RopeType::yarn, .factor = 4, .original_max_position_embeddings = 64}},
      {{{"rope_type", "yarn"}, {"factor", nullptr}, {"original_max_position_embeddings", 16}},
       {.type = RopeType::yarn, .factor = 4, .original_max_position_embeddings = 16}},
      {{{"rope_type", "yarn"},
        {"factor", 4},
        {"beta_fast", 8},
        {"beta_slow", 2},
        {"mscale", 0.5},
        {"mscale_all_dim", 0.75},
        {"attention_factor", 1.5},
        {"truncate", false},
        {"original_max_position_embeddings", 16}},
       {.type = RopeType::yarn,
        .factor = 4,
        .original_max_position_embeddings = 16,
        .beta_fast = 8,
        .beta_slow = 2,
        .mscale = 0.5,
        .mscale_all_dim = 0.75,
        .attention_factor = 1.5,
        .truncate = false}},
      {{{"rope_type", "longrope"},
        {"short_factor", {1, 1.5}},
        {"long_factor", {2, 4}},
        {"original_max_position_embeddings", 16}},
       {.type = RopeType::longrope,
        .factor = 4,
        .original_max_position_embeddings = 16,
        .short_factor = {1, 1.5},
        .long_factor = {2, 4}}},
      {{{"rope_type", "longrope"},
        {"short_factor", {1, 1}},
        {"long_factor", {2, 4}},
        {"factor", 8},
        {"attention_factor", 1.25}},
       {.type = RopeType::longrope,
        .factor = 8,
        .original_max_position_embeddings = 64,
        .attention_factor = 1.25,
        .short_factor = {1, 1},
        .long_factor = {2, 4}}}};
  for (const char* family : kLlamaKinds)
    for (const auto& [rope, want] : cases)
      for (const char* key : {"rope_parameters", "rope_scaling"}) {
        const json c = with(sizes(family), {{"head_dim", 4}, {"max_position_embeddings", 64}, {key, rope}});
        const ModelDescription d = described(c);
        EXPECT_EQ(d.rope.scaling, want) << family << rope;
        const std::string text = model_config_text(d, DType::f32);
        EXPECT_EQ(parse_model_config(text, "written").description.rope, d.rope) << text;
        EXPECT_EQ(json::parse(text)["rope_scaling"]["rope_type"], rope["rope_type"]);
      }
  // A key outside goes before the one inside, as in transformers.
  EXPECT_EQ(described(with(sizes("llama"),
                           {{"original_max_position_embeddings", 8},
                            {"rope_scaling",
                             {{"type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 16}}}}))
                .rope.scaling.original_max_position_embeddings,
            8);
}

TEST(ModelConfig, ScalingsThatCannotBeFollowedAreRefusedByTheirKey) {
  const auto refused = [](const char* key, const json& settings) {
    EXPECT_THAT(refusal(with(sizes("llama"), {{"head_dim", 4}, {"rope_parameters", settings}})),
                HasSubstr("\"rope_parameters." + std::string(key)));
  };
  for (const char* type : {"linear", "dynamic", "yarn"}) {
    refused("factor", {{"rope_type", type}});
    refused("factor", {{"rope_type", type}, {"factor", 0.5}});
    refused("factor", {{"rope_type", type}, {"factor", "2"}});
  }
  refused("factor", {{"rope_type", "yarn"}, {"factor", nullptr}, {"original_max_position_embeddings", 4096}});
  refused("beta_slow", {{"rope_type", "yarn"}, {"factor", 2}, {"beta_slow", 64}});
  refused("truncate", {{"rope_type", "yarn"}, {"factor", 2}, {"truncate", 1}});
  refused("attention_factor", {{"rope_type", "yarn"}, {"factor", 2}, {"attention_factor", -1}});
  const json longrope = {{"rope_type", "longrope"}, {"short_factor", {1, 2}}, {"long_factor", {1, 2}}};
  for (const json& wrong :
       {json(), json(2), json({1}), json({1, 2, 3}), json({1, 0}), json({1, "2"}), json({1, nullptr})})
    for (const char* key : {"short_factor", "long_factor"}) refused(key, with(longrope, {{key, wrong}}));
}

TEST(ModelConfig, WindowsAreFoundWhereTheyAre) {
  const auto windows = [](const std::string& family, const json& more) {
    const ModelDescription d = described(with(with(sizes(family), {{"num_hidden_layers", 3}}), more));
    const std::string text = model_config_text(d, DType::f32);
    const ModelDescription again = parse_model_config(text, "written").description;
    EXPECT_EQ(std::tie(again.window, again.windowed), std::tie(d.window, d.windowed)) << text;
    EXPECT_EQ(model_config_text(again, DType::f32), text);
    std::vector<int64_t> all;
    for (int64_t i = 0; i < d.layers; ++i) all.push_back(d.has_window(i) ? d.window : 0);
    return all;
  };
  const auto none = ElementsAre(0, 0, 0), all = ElementsAre(16, 16, 16);
  EXPECT_THAT(windows("mistral", json::object()), ElementsAre(4096, 4096, 4096)) << "the class's default";
  EXPECT_THAT(windows("mistral", {{"sliding_window", nullptr}}), none);
  EXPECT_THAT(windows("mistral", {{"sliding_window", 16}}), all);
  EXPECT_THAT(windows("mixtral", json::object()), none);
  EXPECT_THAT(windows("mixtral", {{"sliding_window", 16}}), all);
  EXPECT_THAT(windows("llama", {{"sliding_window", 16}}), none) << "its class does not know the key";
  for (const char* family : {"qwen2", "qwen3", "qwen3_moe"}) {
    EXPECT_THAT(windows(family, {{"sliding_window", 16}}), none);
    EXPECT_THAT(windows(family, {{"sliding_window", 16}, {"use_sliding_window", false}}), none);
    EXPECT_THAT(windows(family, {{"sliding_window", nullptr}, {"use_sliding_window", true}}), none);
  }
  EXPECT_THAT(windows("qwen3_moe", {{"sliding_window", 16}, {"use_sliding_window", true}}), all);
  for (const char* family : {"qwen2", "qwen3"}) {
    const json on = {{"sliding_window", 16}, {"use_sliding_window", true}};
    EXPECT_THAT(windows(family, on), none) << "28 blocks before the first with a window";
    EXPECT_THAT(windows(family, with(on, {{"max_window_layers", 1}})), ElementsAre(0, 16, 16));
    EXPECT_THAT(windows(family, with(on, {{"max_window_layers", 3}})), none);
    const auto types = [&](const char* a, const char* b, const char* c) {
      return with(on, {{"max_window_layers", 0}, {"layer_types", {a, b, c}}});
    };
    EXPECT_THAT(windows(family, types("full_attention", "sliding_attention", "full_attention")),
                ElementsAre(0, 16, 0));
    EXPECT_THAT(windows(family, types("full_attention", "full_attention", "full_attention")), none);
    EXPECT_THAT(refusal(with(with(sizes(family), on), {{"layer_types", {"full_attention"}}})),
                HasSubstr("\"layer_types\""));
    EXPECT_THAT(
        refusal(with(with(sizes(family), on), {{"layer_types", {"full_attention", "linear_attention"}}})),
        HasSubstr("linear_attention"));
    const json sliding = with(sizes(family), {{"layer_types", {"full_attention", "sliding_attention"}}});
    EXPECT_THAT(refusal(sliding), HasSubstr("use_sliding_window"));
    EXPECT_THAT(refusal(with(sliding, {{"use_sliding_window", true}, {"sliding_window", nullptr}})),
                HasSubstr("need a window"));
  }
}

TEST(ModelConfig, SequencesThatTheFileDoesNotAllow) {
  const ModelConfig mistral =
      parsed(with(sizes("mistral"), {{"sliding_window", 16}, {"max_position_embeddings", 64}}));
  require_sequence(mistral, 64);
  const ModelConfig llama = parsed(with(sizes("llama"), {{"max_position_embeddings", 64}}));
  require_sequence(llama, 64);
  EXPECT_THAT(message_of<InvalidArgument>([&] { require_sequence(llama, 65); }),
              AllOf(HasSubstr("'in/config.json': \"max_position_embeddings\" is 64"), HasSubstr("65 tokens"),
                    HasSubstr("at most 64"), Not(HasSubstr("dynamic"))));
  const ModelConfig dynamic =
      parsed(with(sizes("llama"),
                  {{"max_position_embeddings", 64}, {"rope_scaling", {{"type", "dynamic"}, {"factor", 4}}}}));
  require_sequence(dynamic, 64);
  EXPECT_THAT(message_of<InvalidArgument>([&] { require_sequence(dynamic, 65); }), HasSubstr("\"dynamic\""));
  EXPECT_THAT(message_of<InvalidArgument>([&] { require_sequence(parsed(sizes("gpt2")), 1025); }),
              HasSubstr("\"n_positions\" is 1024"));
}

TEST(ModelConfig, WhatIsNotComputedIsRefusedByItsKey) {
  const auto refuses = [](const std::string& family, const char* key, const json& value) {
    EXPECT_THAT(refusal(with(sizes(family), {{key, value}})),
                HasSubstr("\"" + std::string(key) + "\" is " + value.dump() + ": "))
        << family;
  };
  for (const char* family : kLlamaKinds) {
    refuses(family, "hidden_act", "relu");
    refuses(family, "hidden_act", "gelu_new");
    refuses(family, "num_key_value_heads", 5);
    refuses(family, "head_dim", 7);
    refuses(family, "quantization_config", {{"bits", 4}});
    refuses(family, "dtype", "float8_e4m3fn");
    refuses(family, "transformers_weights", "other.safetensors");
  }
  refuses("gpt2", "activation_function", "relu");
  refuses("gpt2", "activation_function", "gelu");
  refuses("gpt2", "scale_attn_by_inverse_layer_idx", true);
  refuses("gpt2", "scale_attn_weights", false);
  refuses("gpt2", "add_cross_attention", true);
  refuses("gpt2", "n_head", 5);
  refuses("qwen3_moe", "mlp_only_layers", {1});
  refuses("qwen3_moe", "decoder_sparse_step", 2);
  refuses("qwen3_moe", "num_experts_per_tok", 129);
  refuses("mixtral", "num_experts_per_tok", 9);
  for (const char* good : {"gelu_new", "gelu_pytorch_tanh"})
    parsed(with(sizes("gpt2"), {{"activation_function", good}}));
  for (const char* good : {"silu", "swish"}) parsed(with(sizes("llama"), {{"hidden_act", good}}));
  parsed(with(sizes("qwen3_moe"), {{"mlp_only_layers", nullptr}}));
  for (const std::string other : {"gemma", "gemma2", "qwen3_next"})
    EXPECT_THAT(refusal({{"model_type", other}}),
                AllOf(HasSubstr("\"model_type\" is \"" + other + "\""), HasSubstr("qwen3_moe")));
  EXPECT_THAT(refusal(json::object()), HasSubstr("\"model_type\" is missing"));
  // All at once.
  EXPECT_THAT(
      refusal(with(sizes("llama"),
                   {{"hidden_act", "relu"}, {"vocab_size", 0}, {"rope_scaling", {{"type", "yarn"}}}})),
      AllOf(HasSubstr("hidden_act"), HasSubstr("vocab_size"), HasSubstr("rope_scaling.factor")));
}

TEST(ModelConfig, MissingAndWrongValues) {
  for (const char* family : kFamilyNames) {
    const json all = sizes(family);
    for (const auto& [key, value] : all.items()) {
      if (key == "model_type" || (std::string(family) == "qwen3_moe" && key == "intermediate_size")) continue;
      json c = sizes(family);
      c.erase(key);
      if (key == "num_experts" || key == "num_local_experts")
        EXPECT_THAT(refusal(c), HasSubstr("experts\" is missing")) << family;
      else
        EXPECT_THAT(refusal(c), HasSubstr("\"" + key + "\" is missing")) << family;
      for (const json& wrong :
           {json("64"), json(64.0), json(true), json(0), json(-1), json(int64_t{1} << 40),
            json(std::numeric_limits<uint64_t>::max()), json::array({64}), json::object()}) {
        c[key] = wrong;
        EXPECT_THAT(refusal(c), HasSubstr("\"" + key + "\" is " + wrong.dump())) << family;
      }
    }
  }
  for (const json& wrong : {json("1e-6"), json(true), json(0), json(-1e-6), json(1e300)})
    EXPECT_THAT(refusal(with(sizes("llama"), {{"rms_norm_eps", wrong}})),
                HasSubstr("\"rms_norm_eps\" is " + wrong.dump()));
  for (const json& wrong : {json(1), json("true")})
    EXPECT_THAT(refusal(with(sizes("llama"), {{"tie_word_embeddings", wrong}})), HasSubstr("true or false"));
  EXPECT_THAT(refusal(with(sizes("llama"), {{"num_attention_heads", 6}, {"num_key_value_heads", 6}})),
              HasSubstr("\"num_attention_heads\" is 6: hidden_size is 64"));
}

TEST(ModelConfig, HostileFiles) {
  const auto refused = [](const std::string& text) {
    return message_of<InvalidArgument>([&] { parse_model_config(text, "c.json"); });
  };
  for (const char* text :
       {"", "[]", "7", "null", "\"llama\"", "{", "{\"a\":}", "{\"model_type\":\"llama\"", "\xff\xfe"})
    EXPECT_THAT(refused(text), HasSubstr("'c.json'")) << text;
  EXPECT_THAT(refused(std::string("{}\0{}", 5)), HasSubstr("zero byte"));
  EXPECT_THAT(refused(R"({"a":1,"a":2})"), HasSubstr("twice"));
  EXPECT_THAT(refused("{\"a\":" + std::string(100'000, '[')), HasSubstr("deep"));
  EXPECT_THAT(refused(R"({"model_type":"llama","vocab_size":1e999})"), HasSubstr("not valid JSON"));
  EXPECT_THAT(refused(R"({"model_type":"llama","vocab_size":99999999999999999999999})"),
              HasSubstr("vocab_size"));
  EXPECT_THAT(refused(R"({"model_type":"llama","rms_norm_eps":NaN})"), HasSubstr("not valid JSON"));
  const std::string long_text = refused(R"({"model_type":")" + std::string(100'000, 'x') + "\"}");
  EXPECT_LT(long_text.size(), 1000u);
  EXPECT_THAT(refused("{\"model_type\":\"a\\nb\\u0007\"}"), AllOf(Not(HasSubstr("\n")), HasSubstr("a\\nb")));
  EXPECT_THAT(refused(R"({"model_type":["llama"]})"), HasSubstr("\"model_type\" is [\"llama\"]"));

  // Sizes whose products, of elements or bytes, would not be numbers of 64 bits.
  EXPECT_THAT(refusal(with(sizes("llama"), {{"hidden_size", 131072},
                                            {"num_attention_heads", 131072},
                                            {"num_key_value_heads", 131072},
                                            {"head_dim", 1 << 20}})),
              AllOf(HasSubstr("\"num_attention_heads\" is 131072: with a head_dim of 1048576"),
                    HasSubstr("at most 1048576")));
  EXPECT_THAT(refusal(with(sizes("llama"), {{"head_dim", 1 << 30}})),
              HasSubstr("\"head_dim\" is 1073741824"));
  EXPECT_THAT(refusal(with(sizes("gpt2"), {{"n_inner", 1 << 30}})), HasSubstr("\"n_inner\" is 1073741824"));
  EXPECT_THAT(refusal(with(sizes("mixtral"), {{"num_local_experts", 65536},
                                              {"intermediate_size", 1 << 20},
                                              {"hidden_size", 1 << 20},
                                              {"num_hidden_layers", 10000}})),
              AllOf(HasSubstr("1048576 hidden columns, 65536 experts"), HasSubstr("2.2e+21 parameters")));
  EXPECT_EQ(described(with(sizes("llama"), {{"hidden_size", 1 << 17},
                                            {"num_attention_heads", 1024},
                                            {"num_hidden_layers", 512},
                                            {"intermediate_size", 1 << 19},
                                            {"vocab_size", 1 << 20}}))
                .dim,
            1 << 17);

  const TemporaryFolder folder;
  EXPECT_THAT(message_of<IoError>([&] { read_model_config(folder.path()); }), HasSubstr("config.json"));
  folder.write("config.json", sizes("qwen3").dump());
  EXPECT_EQ(read_model_config(folder.path()).description.head_dim, 128);
  folder.write("config.json", std::string((16 << 20) + 1, ' '));
  EXPECT_THAT(message_of<IoError>([&] { read_model_config(folder.path()); }), HasSubstr("config.json"));
}

TEST(ModelConfig, WhatTrainingDoesNotFollowIsNoted) {
  EXPECT_THAT(parsed(sizes("llama")).notes, IsEmpty());
  EXPECT_THAT(parsed(with(sizes("llama"), {{"attention_dropout", 0.25}})).notes,
              ElementsAre(HasSubstr("\"attention_dropout\" is 0.25")));
  EXPECT_EQ(parsed(sizes("gpt2")).notes.size(), 3u) << "GPT-2's class has dropout 0.1";
  EXPECT_THAT(parsed(with(sizes("mixtral"), {{"router_jitter_noise", 0.1}})).notes,
              ElementsAre(HasSubstr("router_jitter_noise")));
}

TEST(ModelConfig, WhatIsWrittenIsReadBack) {
  for (const char* family : kFamilyNames) {
    json c = with(sizes(family), {{"tie_word_embeddings", true}, {"initializer_range", 0.03}});
    if (std::string(family) != "gpt2") {
      c.update({{"num_key_value_heads", 8},
                {"head_dim", 10},
                {"rms_norm_eps", 3e-6},
                {"max_position_embeddings", 128},
                {"rope_parameters",
                 {{"rope_type", "llama3"},
                  {"rope_theta", 123456.5},
                  {"factor", 2.5},
                  {"low_freq_factor", 1.5},
                  {"high_freq_factor", 4.5},
                  {"original_max_position_embeddings", 64}}},
                {"sliding_window", nullptr},
                {"output_router_logits", true},
                {"router_aux_loss_coef", 0.125},
                {"norm_topk_prob", true}});
    }
    const ModelDescription d = described(c);
    const std::string text = model_config_text(d, DType::bf16);
    const ModelConfig again = parse_model_config(text, "written");
    EXPECT_EQ(again.dtype, DType::bf16);
    EXPECT_THAT(again.notes, IsEmpty());
    EXPECT_EQ(model_config_text(again.description, DType::bf16), text) << family;
    const ModelDescription& e = again.description;
    EXPECT_EQ(e.family, d.family);
    EXPECT_EQ(std::tie(e.vocab, e.dim, e.layers, e.heads, e.kv_heads, e.head_dim, e.hidden, e.positions),
              std::tie(d.vocab, d.dim, d.layers, d.heads, d.kv_heads, d.head_dim, d.hidden, d.positions))
        << family;
    EXPECT_EQ(
        std::tie(e.norm_eps, e.tied, e.qkv_bias, e.out_bias, e.mlp_bias, e.qk_norm, e.init_std, e.mixture),
        std::tie(d.norm_eps, d.tied, d.qkv_bias, d.out_bias, d.mlp_bias, d.qk_norm, d.init_std, d.mixture))
        << family;
    EXPECT_EQ(e.rope, d.rope);
    EXPECT_EQ(json::parse(text)["model_type"], family);
  }
  ModelDescription biased = described(sizes("mistral"));
  biased.qkv_bias = true;
  EXPECT_THAT(message_of<InvalidArgument>([&] { model_config_text(biased, DType::f32); }),
              AllOf(HasSubstr("mistral"), HasSubstr("qkv_bias")));
  ModelDescription mixed = described(with(sizes("mistral"), {{"sliding_window", 16}}));
  mixed.windowed[0] = false;
  mixed.window_rope = nn::RopeDescription{.theta = 5};
  EXPECT_THAT(
      message_of<InvalidArgument>([&] { model_config_text(mixed, DType::f32); }),
      AllOf(
          HasSubstr("windows 16 positions in blocks [1] would be read back as 16 positions in blocks [0, 1]"),
          HasSubstr("rope {")));
  EXPECT_THAT(message_of<InvalidArgument>([&] { model_config_text(described(sizes("llama")), DType::i32); }),
              HasSubstr("i32"));
}

TEST(ModelConfig, ADecimalCommaChangesNothing) {
  ModelDescription d = described(sizes("llama"));
  d.init_std = 0.03f, d.norm_eps = 1.5e-6f, d.rope.theta = 123456.5;
  const std::string text = model_config_text(d, DType::f32);
  const test::CommaLocale locale;
  EXPECT_EQ(model_config_text(d, DType::f32), text);
  const ModelDescription again = parse_model_config(text, "written").description;
  EXPECT_EQ(std::tie(again.init_std, again.norm_eps, again.rope.theta),
            std::tie(d.init_std, d.norm_eps, d.rope.theta));
  if (!locale.c()) GTEST_SKIP() << "of the locales of C++ alone: localedef is missing";
}

TEST(ModelConfigText, AModelThatTransformersLacksIsRefused) {
  nn::ModelDescription d;
  d.family = nn::ModelFamily::byte_gpt;
  EXPECT_THAT(message_of<InvalidArgument>([&] { (void)model_config_text(d, DType::f32); }),
              HasSubstr("byte_gpt"));
}

}  // namespace
}  // namespace sherd::hf
