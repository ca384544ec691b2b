// Descriptions: what is refused, presets, and names in files.

#include "golden_folder.h"
#include "support/message_of.h"

#include <sherd/nn/models/presets.h>

namespace sherd::test {
namespace {

using nn::ModelDescription;
using nn::ModelFamily;

std::string refusal(const ModelDescription& m, const nn::CausalModelOptions& o = {}) {
  return message_of<InvalidArgument>([&] { causal_model(m, o); });
}

ModelDescription changed(const char* family, const std::function<void(ModelDescription&)>& change) {
  ModelDescription m = GoldenFolder(family).description;
  change(m);
  return m;
}

TEST(CausalModel, BadDescriptionsAreRefusedWithAllThatIsWrong) {
  const std::string all = refusal(changed("llama", [](auto& m) {
    m.vocab = 0, m.kv_heads = 3, m.head_dim = 7, m.norm_eps = 0, m.mixture.experts = 4, m.rope.theta = -1;
  }));
  for (const char* part :
       {"llama: ", "vocab 0 must be positive", "kv_heads 3 must divide heads 4", "head_dim 7 must be even",
        "norm_eps 0", "4 experts, but llama is a family without them", "rope theta -1"})
    EXPECT_THAT(all, HasSubstr(part));
  EXPECT_THAT(refusal(changed("gpt2", [](auto& m) { m.mlp_bias = false; })),
              HasSubstr("gpt2 has biases everywhere"));
  EXPECT_THAT(refusal(changed("gpt2", [](auto& m) { m.kv_heads = 2; })), HasSubstr("as many kv_heads (2)"));
  ModelDescription bytes = byte_gpt();
  EXPECT_THAT(refusal(bytes, {.sequence_parallel = true, .lora = {.rank = 2, .alpha = 1, .targets = "qkv"}}),
              AllOf(HasSubstr("no sequence parallelism"), HasSubstr("have no adapters")));
  bytes.tied = bytes.qkv_bias = true;
  EXPECT_THAT(refusal(bytes),
              AllOf(HasSubstr("byte_gpt has biases nowhere"), HasSubstr("a head of its own")));
  EXPECT_THAT(refusal(changed("qwen3_moe", [](auto& m) { m.mixture.top_k = 9; })), HasSubstr("top_k 9"));
  EXPECT_THAT(refusal(changed("mixtral", [](auto& m) { m.mixture.experts = 0; })),
              HasSubstr("mixtral is a family with them"));
  EXPECT_THAT(refusal(changed("mixtral", [](auto& m) { m.mixture.experts = m.mixture.top_k = 80; })),
              HasSubstr("at most 64"));
  EXPECT_THAT(refusal(changed("mixtral", [](auto&) {}), {.ep = {.parts = 4}}),
              HasSubstr("4 parts do not divide 6"));
  EXPECT_THAT(refusal(changed("llama", [](auto& m) { m.mixture.experts = -1, m.hidden = 0; })),
              AllOf(HasSubstr("-1 experts must not be negative"), HasSubstr("hidden 0 must be positive")));
  EXPECT_THAT(refusal(changed("llama", [](auto& m) { m.rope.scaling.factor = 0; })),
              HasSubstr("rotary scaling \"llama3\" of 12 columns with factor 0"));
  EXPECT_THAT(
      refusal(changed("olmo3", [](auto& m) { m.window_rope->scaling = {.type = RopeType::longrope}; })),
      HasSubstr("rotary scaling \"longrope\" of 6 columns"));
  EXPECT_THAT(refusal(changed("mixtral", [](auto& m) { m.mixture.balance = std::nan(""); })),
              HasSubstr("balancing loss's share nan"));
  EXPECT_THAT(refusal(changed("mixtral", [](auto&) {}), {.ep = {.parts = 2, .index = 2}}),
              HasSubstr("part 2 of 2 parts"));
  launch(2, [](RankContext& r) {
    const DeviceMesh mesh(r.world, {{"tp", 2}});
    EXPECT_THAT(refusal(changed("mixtral", [](auto&) {}), {.tp = nn::TensorParallel::of(mesh)}),
                HasSubstr("need a mesh of their own"));
  });
  EXPECT_THAT(refusal(changed("deepseek_v3",
                              [](auto& m) {
                                m.latent.rope = 3, m.kv_heads = 2, m.mixture.groups = 5,
                                m.mixture.dense_layers = 3;
                                m.mixture.scaling = 0, m.mixture.bias_speed = -1;
                              })),
              AllOf(HasSubstr("rope 3"), HasSubstr("head_dim 10 must be nope + rope, 9"),
                    HasSubstr("2 kv_heads"), HasSubstr("3 dense layers of 3"),
                    HasSubstr("5 groups must divide 12"), HasSubstr("gates times 0"), HasSubstr("speed -1")));
  EXPECT_THAT(refusal(changed("llama", [](auto& m) { m.latent.kv_rank = 4, m.mixture.shared = 1; })),
              AllOf(HasSubstr("latent attention, which llama has not"), HasSubstr("shared experts")));
  EXPECT_THAT(refusal(changed("llama",
                              [](auto& m) {
                                m.windowed = {true, false}, m.query_scalar = 8;
                              })),
              AllOf(HasSubstr("a window of 0 positions"), HasSubstr("a query_scalar, which llama has not")));
  EXPECT_THAT(refusal(changed("deepseek_v3", [](auto& m) { m.windowed.assign(3, true), m.window = 4; })),
              HasSubstr("windows of latent attention"));
  EXPECT_THAT(refusal(changed("olmo3", [](auto& m) { m.window = 0, m.windowed.pop_back(); })),
              AllOf(HasSubstr("windows of 3 blocks; the model has 4"), HasSubstr("a window of 0 positions")));
  EXPECT_THAT(refusal(changed("gpt_oss", [](auto& m) { m.mixture.normalise = false; })),
              HasSubstr("gpt_oss has normalised gates"));
  EXPECT_THAT(refusal(changed("llama", [](auto&) {}), {.logits_chunk = -1}), HasSubstr("logits_chunk -1"));
}

TEST(Presets, AreModelsOfThePublishedSizes) {
  // Parameters as published, the tied head counted once.
  const std::map<std::string, int64_t> sizes = {
      {"gpt2-124m", 124439808},      {"gpt2-350m", 354823168},      {"gpt2-774m", 774030080},
      {"gpt2-1.5b", 1557611200},     {"llama3.2-1b", 1235814400},   {"llama3.2-3b", 3212749824},
      {"llama3-8b", 8030261248},     {"llama3-70b", 70553706496},   {"llama3-405b", 405853388800},
      {"mistral-7b", 7248023552},    {"qwen2-0.5b", 494032768},     {"qwen3-0.6b", 596049920},
      {"qwen3-1.7b", 1720574976},    {"qwen3-8b", 8190735360},      {"qwen3-30b-a3b", 30532122624},
      {"mixtral-8x7b", 46702792704}, {"deepseek-v3", 671026404352}, {"kimi-k2", 1026408209408},
      {"gpt-oss-120b", 116829156672}};
  EXPECT_EQ(nn::preset_names().size(), sizes.size());
  for (const std::string& name : nn::preset_names()) {
    int64_t parameters = 0;
    const auto model = causal_model(nn::preset(name));
    for (auto& [n, p] : model->named_parameters()) parameters += p.numel();
    EXPECT_EQ(parameters, sizes.at(name)) << name;
  }
  EXPECT_THAT(message_of<InvalidArgument>([&] { nn::preset("llama-9b"); }),
              ::testing::AllOf(HasSubstr("'llama-9b'"), HasSubstr("gpt2-124m, gpt2-350m")));
}

TEST(StoredNames, OfFusedExpertsAreHalvesOfOneTensor) {
  const ModelDescription m = GoldenFolder("mixtral").description;
  const StoredNames names = stored_names(m, true);
  const StoredPiece& up = names.at("model.layers.1.mlp.experts.up_proj.weight").at(0);
  EXPECT_EQ(up.tensor, "model.layers.1.mlp.experts.gate_up_proj");
  EXPECT_EQ(up.shape, (Shape{6, 40, 24}));
  EXPECT_EQ(up.in_tensor, (Box{{0, 20, 0}, {6, 20, 24}}));
  const StoredPiece& down = names.at("model.layers.1.mlp.experts.down_proj.weight").at(0);
  EXPECT_EQ(down.tensor, "model.layers.1.mlp.experts.down_proj");
  EXPECT_EQ(down.shape, (Shape{6, 24, 20}));
  EXPECT_EQ(down.in_tensor, down.in_parameter);
  EXPECT_FALSE(names.contains("model.layers.1.mlp.gate.weight"));
}

}  // namespace
}  // namespace sherd::test
