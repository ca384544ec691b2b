// Multi-token prediction on any ranks. Its figures beside PyTorch's are in tests/interop/multi_token_training.py.

#include "arranged_training.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using nn::ModelDescription;

ModelDescription with_head(const char* family) {
  ModelDescription m = GoldenFolder(family).description;
  m.mtp_layers = 1;
  m.init_std = 0.2f;
  return m;
}

const TrainingPlan kWeighted{.next_weight = 0.3f};

TEST(MultiToken, HasTheSameBitsUnderAllStrategiesAndRecomputation) {
  for (const int tp : {1, 2}) {
    ModelDescription m = with_head("deepseek_v3");
    m.mixture.balance = 0.01, m.mixture.bias_speed = 0.01;
    Arrangement a{.name = "", .ranks = 4, .tp = tp, .ep = 2, .strategy = Strategy::no_shard};
    const Outcome want = train(m, a, kWeighted);
    EXPECT_EQ(want.next_losses.size(), 3u);
    for (const Strategy s : {Strategy::optim, Strategy::optim_grads, Strategy::optim_grads_params}) {
      a.strategy = s;
      expect_same_bits(train(m, a, kWeighted), want, name_of(s));
    }
    a.recompute = true;
    expect_same_bits(train(m, a, kWeighted), want, "recomputed");
  }
}

TEST(MultiToken, TrainsAlikeOnAllArrangements) {
  for (const char* family : {"deepseek_v3", "glm4_moe"}) {
    const ModelDescription m = with_head(family);
    const Outcome want = train(m, {.name = "one rank"}, kWeighted);
    for (const Arrangement& a :
         {Arrangement{.name = "zero3", .ranks = 4},
          {.name = "tp 2 ep 2", .ranks = 4, .tp = 2, .ep = 2},
          {.name = "tp 4", .ranks = 4, .tp = 4},
          {.name = "rows split", .ranks = 4, .tp = 2, .ep = 2, .recompute = true, .sequence_parallel = true}})
      expect_near(train(m, a, kWeighted), want, a.name);
  }
}

// Both the layer and what is below it learn from its loss; the layer alone where the others are frozen.
TEST(MultiToken, TrainsItsLayerAndTheModelBelow) {
  const ModelDescription m = with_head("deepseek_v3");
  ModelDescription none = m;
  none.mtp_layers = 0;
  const Outcome start = train(m, {.name = ""}, {.steps = 0}), with = train(m, {.name = ""}, kWeighted),
                without = train(none, {.name = ""});
  EXPECT_EQ(with.losses[0], without.losses[0]) << "not part of the loss";
  EXPECT_NE(with.losses[2], without.losses[2]);
  TrainingPlan alone = kWeighted;
  alone.prepare = [](nn::CausalModel& model) {
    for (auto& [name, p] : model.named_parameters())
      if (!name.starts_with("model.layers.3.")) Parameter(p).freeze();
  };
  const Outcome head = train(m, {.name = "", .ranks = 2}, alone);
  for (const char* part : {"eh_proj", "enorm", "hnorm", "shared_head.norm", "self_attn.o_proj"}) {
    const std::string name = std::string("model.layers.3.") + part + ".weight";
    EXPECT_NE(with.weights.at(name), start.weights.at(name)) << name;
    EXPECT_NE(head.weights.at(name), start.weights.at(name)) << name;
  }
  const std::string below = "model.layers.2.self_attn.o_proj.weight";
  EXPECT_NE(with.weights.at(below), without.weights.at(below));
  EXPECT_EQ(head.weights.at(below), start.weights.at(below));
}

TEST(MultiToken, IsRefusedWithoutAHeadAndInFamiliesThatHaveNone) {
  const ModelDescription none = GoldenFolder("deepseek_v3").description;
  EXPECT_THAT(message_of<InvalidArgument>([&] { train(none, {.name = ""}, kWeighted); }),
              HasSubstr("it has no head for multi-token prediction"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { (void)causal_model(with_head("llama")); }),
              HasSubstr("1 heads for multi-token prediction; llama may have none"));
  ModelDescription odd = with_head("deepseek_v3");
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                (void)causal_model(odd, {.lora = {.rank = 2, .alpha = 2, .targets = "self_attn"}});
              }),
              HasSubstr("adapters beside a head for multi-token prediction"));
}

}  // namespace
}  // namespace sherd::test
