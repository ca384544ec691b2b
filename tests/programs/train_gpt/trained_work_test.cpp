// Operations of models with frozen parameters, counted from their parameters beside the formula's sizes.
#include "train_gpt/model/trained_work.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <sherd/nn/hf/model_config.h>
#include <sherd/nn/models/presets.h>

#include "parse_flags.h"
#include "temporary_folder.h"
#include "train_gpt/model/model_source.h"

namespace train_gpt {
namespace {

namespace nn = sherd::nn;

struct WorkOfTokens {
  sherd::TokenWork formula, counted;
};

/// Returns the work of a model whose parameters of `pattern` are frozen.
WorkOfTokens work_of(const std::vector<std::string>& flags, const std::string& pattern) {
  const TrainConfig c = with_model_files(parse_line(flags).config);
  const auto model = build_model(c, {}, {});
  freeze_parameters(*model, pattern);
  return {token_work(c), trained_work(c, *model)};
}

std::vector<std::string> preset(const std::string& name) {
  return {"--model", name, "--from-scratch", "--steps", "0"};
}

TEST(TrainedWork, OfAllParametersIsTheFormulas) {
  const WorkOfTokens all = work_of(preset("llama3-8b"), "");
  EXPECT_EQ(all.counted.weights, all.formula.weights);
  EXPECT_EQ(all.counted.frozen + all.counted.ahead + all.counted.attention_ahead, 0);
}

// Parameters and description agree on what multiplies a token.
TEST(TrainedWork, FrozenMatricesAreAllWeightsOfTheFormula) {
  for (const char* name :
       {"llama3-8b", "qwen3-30b-a3b", "deepseek-v3", "kimi-k2", "gpt-oss-120b", "gpt2-124m"}) {
    const WorkOfTokens frozen = work_of(preset(name), R"(proj|mlp|attn|head|embed|\.c_|wte|wpe)");
    EXPECT_EQ(frozen.counted.frozen, frozen.formula.weights) << name;
    EXPECT_EQ(frozen.counted.ahead, 0) << name << ": norms of the first block are trained";
  }
  const WorkOfTokens bytes = work_of({"--steps", "0"}, "qkv|proj|fc|out|head|tok|pos");
  EXPECT_EQ(bytes.counted.frozen, bytes.formula.weights);
}

// The head multiplies a token twice: behind the last block, and behind the layer for multi-token prediction.
TEST(TrainedWork, MultiTokenPredictionAddsABlockAndTheHead) {
  const TemporaryFolder folder;
  auto json =
      nlohmann::json::parse(sherd::hf::model_config_text(nn::preset("deepseek-v3"), sherd::DType::f32));
  json["num_nextn_predict_layers"] = 1;
  folder.write("model/config.json", json.dump());
  std::vector<std::string> flags = preset(folder / "model");
  const WorkOfTokens without = work_of(flags, "proj|mlp|head|embed");
  flags.insert(flags.end(), {"--mtp-weight", "0.3"});
  const WorkOfTokens with = work_of(flags, "proj|mlp|head|embed");
  EXPECT_EQ(with.counted.frozen, with.formula.weights);
  const int64_t dim = 7168, head = dim * 129280, eh_proj = 2 * dim * dim;
  const int64_t dense = 3 * dim * 18432, mixture = dim * (256 + 3 * 9 * 2048);
  const int64_t attention = (without.formula.weights - head - 3 * dense - 58 * mixture) / 61;
  EXPECT_EQ(with.formula.weights - without.formula.weights, head + eh_proj + attention + mixture);
  EXPECT_EQ(with.formula.attention_width, without.formula.attention_width / 61 * 62);
}

TEST(TrainedWork, BlocksBeforeTheFirstTrainedParameterHaveNoBackward) {
  const WorkOfTokens c = work_of(preset("llama3-8b"), R"(embed_tokens|layers\.([0-9]|1[0-9]|2[0-3])\.)");
  const int64_t head = int64_t{128256} * 4096, blocks = c.formula.weights - head;
  EXPECT_EQ(c.counted.ahead, blocks / 32 * 24);
  EXPECT_EQ(c.counted.frozen, c.counted.ahead);
  EXPECT_EQ(c.counted.attention_ahead, c.formula.attention_width / 32 * 24);
  const WorkOfTokens table = work_of(preset("llama3-8b"), R"(layers\.0\.)");
  EXPECT_EQ(table.counted.ahead, 0) << "the embedding before it is trained";
}

TEST(TrainedWork, AdaptersAddTheirOwnProducts) {
  const WorkOfTokens c = work_of({"--model", "llama3-8b", "--from-scratch", "--steps", "0", "--lora-rank",
                                  "8", "--lora-targets", "q_proj"},
                                 "");
  EXPECT_EQ(c.counted.weights, c.formula.weights + 32 * 2 * 8 * 4096);
  EXPECT_EQ(c.counted.frozen, c.formula.weights);
  EXPECT_EQ(c.counted.ahead, 0);
}

}  // namespace
}  // namespace train_gpt
