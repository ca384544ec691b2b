// adapter_config.json of adapters' folders.
#include <sherd/nn/hf/adapter_folder.h>

#include <nlohmann/json.hpp>

#include <string>

#include <sherd/base/error.h>

#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd::hf {
namespace {

using nlohmann::json;

// Returns the file as peft 0.21 writes it.
json of_peft() {
  return json::parse(R"({
    "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
    "base_model_name_or_path": "in", "bias": "none", "corda_config": null, "ensure_weight_tying": false,
    "eva_config": null, "exclude_modules": null, "fan_in_fan_out": false, "inference_mode": true,
    "init_lora_weights": true, "layer_replication": null, "layers_pattern": null, "layers_to_transform": null,
    "loftq_config": {}, "lora_alpha": 16, "lora_bias": false, "lora_dropout": 0.0, "lora_ga_config": null,
    "megatron_config": null, "megatron_core": "megatron.core", "modules_to_save": null, "peft_type": "LORA",
    "peft_version": "0.21.2", "qalora_group_size": 16, "r": 4, "rank_pattern": {}, "revision": null,
    "target_modules": ["v_proj", "q_proj"], "target_parameters": null, "task_type": "CAUSAL_LM",
    "trainable_token_indices": null, "use_bdlora": null, "use_dora": false, "use_qalora": false,
    "use_rslora": false})");
}

class AdapterFolder : public ::testing::Test {
 protected:
  AdapterConfig read(const json& changes = json::object()) const {
    json config = of_peft();
    config.update(changes);
    folder_.write("ad/adapter_config.json", config.dump());
    return read_adapter_config(folder_ / "ad");
  }
  std::string refusal(const json& changes) const {
    return message_of<InvalidArgument>([&] { read(changes); });
  }

  TemporaryFolder folder_;
};

TEST_F(AdapterFolder, SettingsOfPeftAreRead) {
  const AdapterConfig c = read();
  EXPECT_EQ(c.source, folder_ / "ad/adapter_config.json");
  EXPECT_EQ(c.rank, 4);
  EXPECT_EQ(c.alpha, 16);
  EXPECT_THAT(c.targets, ElementsAre("v_proj", "q_proj"));
  EXPECT_THAT(c.notes, IsEmpty());
  EXPECT_EQ(read({{"lora_alpha", 0.5}}).alpha, 0.5);
  EXPECT_THAT(read({{"target_modules", "all-linear"}}).targets, ElementsAre("all-linear"));
  EXPECT_THAT(
      read({{"lora_dropout", 0.25}}).notes,
      ElementsAre(AllOf(HasSubstr("ad/adapter_config.json"), HasSubstr("lora_dropout 0.25 is not applied"))));
  EXPECT_EQ(read({{"init_lora_weights", "gaussian"}}).rank, 4);
}

TEST_F(AdapterFolder, WhatIsNotComputedIsRefusedByItsKey) {
  for (const json& change :
       {json{{"peft_type", "IA3"}}, json{{"bias", "all"}}, json{{"use_rslora", true}},
        json{{"use_dora", true}}, json{{"lora_bias", true}}, json{{"rank_pattern", {{"q_proj", 8}}}},
        json{{"alpha_pattern", {{"q_proj", 8}}}}, json{{"modules_to_save", {"lm_head"}}},
        json{{"target_parameters", {"mlp.experts.down_proj"}}}, json{{"layer_replication", {{0, 2}}}},
        json{{"trainable_token_indices", {1}}}, json{{"init_lora_weights", "pissa"}}, json{{"r", 0}},
        json{{"r", "4"}}, json{{"lora_alpha", nullptr}}})
    EXPECT_THAT(refusal(change),
                AllOf(HasSubstr("ad/adapter_config.json"), HasSubstr("\"" + change.begin().key() + "\"")))
        << change;
  EXPECT_THAT(refusal({{"use_dora", true}, {"bias", "all"}}),
              AllOf(HasSubstr("use_dora"), HasSubstr("bias")));
  EXPECT_THROW(read_adapter_config(folder_ / "nowhere"), IoError);
}

TEST_F(AdapterFolder, RankAndAlphaMustBeTheRuns) {
  const AdapterConfig c = read();
  EXPECT_NO_THROW(require_same(c, {.rank = 4, .alpha = 16}));
  EXPECT_THAT(
      message_of<InvalidArgument>([&] { require_same(c, {.rank = 2, .alpha = 8}); }),
      AllOf(HasSubstr("rank 4, and LoraOptions::rank is 2"),
            HasSubstr("alpha 16, and LoraOptions::alpha is 8"), HasSubstr("give those of the adapters")));
}

TEST_F(AdapterFolder, OneWithWeightsOfAModelIsThatModels) {
  EXPECT_FALSE(is_adapter_folder(folder_ / "nowhere"));
  read();
  EXPECT_TRUE(is_adapter_folder(folder_ / "ad"));
  EXPECT_FALSE(is_adapter_folder(folder_ / "ad/adapter_config.json"));
  for (const char* weights : {"model.safetensors", "model.safetensors.index.json", "manifest.binpb"}) {
    const std::filesystem::path file = folder_.write("ad/" + std::string(weights), "");
    EXPECT_FALSE(is_adapter_folder(folder_ / "ad")) << weights;
    std::filesystem::remove(file);
  }
}

}  // namespace
}  // namespace sherd::hf
