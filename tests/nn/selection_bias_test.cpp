// Balance of experts in DeepSeek-V3's architecture: the selection bias, and the sequence-wise loss, on any ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "arranged_training.h"

namespace sherd::test {
namespace {

using nn::ModelDescription;
using Biases = std::map<std::string, std::vector<float>>;

ModelDescription balanced(double bias_speed, double balance) {
  ModelDescription m = GoldenFolder("deepseek_v3").description;
  m.mixture.bias_speed = bias_speed;
  m.mixture.balance = balance;
  m.init_std = 0.2f;
  return m;
}

Biases biases_after_training(const ModelDescription& m, const Arrangement& a) {
  Biases all;
  std::mutex mutex;
  TrainingPlan plan;
  plan.look = [&](RankContext& rank, ArrangedModel& arranged, int) {
    Biases mine;
    for (auto& [name, b] : arranged.model->named_buffers())
      mine[name] = ops::to_floats(rank.device->compute(), b.data());
    const std::lock_guard lock(mutex);
    if (all.empty()) all = mine;
    EXPECT_EQ(mine, all) << a.name << ": ranks differ";
  };
  train(m, a, plan);
  return all;
}

const Arrangement kBalanced[] = {{.name = "one rank"},
                                 {.name = "one rank, recomputed", .recompute = true},
                                 {.name = "zero3", .ranks = 4},
                                 {.name = "no expert ranks given", .ranks = 4, .default_ep = true},
                                 {.name = "replicas, no expert ranks given",
                                  .ranks = 4,
                                  .strategy = Strategy::no_shard,
                                  .replicas = 2,
                                  .default_ep = true},
                                 {.name = "EP 2 x TP 2", .ranks = 4, .tp = 2, .ep = 2},
                                 {.name = "EP 2 x TP 2, rows split",
                                  .ranks = 4,
                                  .tp = 2,
                                  .ep = 2,
                                  .recompute = true,
                                  .sequence_parallel = true}};

// Counts are whole numbers and the speed is added to or subtracted from the same value: equal in bits.
TEST(SelectionBias, IsEqualOnAllRanksAndArrangements) {
  const Biases want = biases_after_training(balanced(0.01, 0), kBalanced[0]);
  ASSERT_EQ(want.size(), 2u);  // the first of three blocks is dense
  for (const auto& [name, values] : want) {
    EXPECT_THAT(name, testing::EndsWith("mlp.gate.e_score_correction_bias"));
    // 3 steps of 0.01, up or down: experts of few rows are raised, of many lowered.
    EXPECT_THAT(values, testing::Contains(testing::Gt(0.005f)));
    EXPECT_THAT(values, testing::Contains(testing::Lt(-0.005f)));
    EXPECT_THAT(values, testing::Each(testing::AllOf(testing::Ge(-0.0301f), testing::Le(0.0301f))));
  }
  for (const Arrangement& a : kBalanced)
    EXPECT_EQ(biases_after_training(balanced(0.01, 0), a), want) << a.name;
}

TEST(SelectionBias, StaysWithoutASpeed) {
  for (const auto& [name, values] : biases_after_training(balanced(0, 0), kBalanced[0]))
    EXPECT_THAT(values, testing::Each(0.0f)) << name;
}

TEST(SequenceBalance, IsTheSameOnAllArrangements) {
  const Outcome want = train(balanced(0, 0.5), kBalanced[0]), without = train(balanced(0, 0), kBalanced[0]);
  EXPECT_EQ(want.losses[0], without.losses[0]);  // not part of the printed loss
  EXPECT_NE(want.norms[0], without.norms[0]);
  for (const Arrangement& a : kBalanced) expect_near(train(balanced(0, 0.5), a), want, a.name);
}

// The gradient of one forward's logits beside the loss by its definition (DeepSeek-V3, equations 17 to 20), by differences
// of f64: 1e-3 of the largest component, for f32 gradients of values near 1 and steps of 1e-3.
TEST(SequenceBalance, HasTheGradientOfItsDefinition) {
  constexpr int64_t kTexts = 2, kLength = 3, kRouted = 4, kOfRow = 2;
  const float weight = 0.7f, scale = 0.25f;
  launch(1, [&](RankContext& rank) {
    Stream& s = rank.device->compute();
    std::vector<float> logits;
    for (int i = 0; i < kTexts * kLength * kRouted; ++i)
      logits.push_back(std::sin(1.7f * static_cast<float>(i)));
    const Tensor x = Tensor::empty(*rank.device, {kTexts * kLength, kRouted}, DType::f32, "test");
    ops::copy_from_host(s, x, logits.data(), x.nbytes());
    nn::Tape tape;
    const nn::Var in = tape.leaf(x);
    const nn::Routes routes = route_in_groups(
        in,
        {.k = kOfRow, .weight = weight, .scale = scale, .sequences = kTexts, .all_rows = kTexts * kLength});
    std::vector<int32_t> chosen(static_cast<size_t>(routes.indices.numel()));
    ops::copy_to_host(s, chosen.data(), routes.indices);
    tape.backward(nn::scale(nn::sum(routes.gates), 0));
    const std::vector<float> got = ops::to_floats(s, tape.gradient(in));
    const auto loss = [&](const std::vector<double>& at) {
      double sum = 0;
      for (int64_t q = 0; q < kTexts; ++q)
        for (int64_t e = 0; e < kRouted; ++e) {
          double count = 0, mean = 0;
          for (int64_t t = q * kLength; t < (q + 1) * kLength; ++t) {
            double total = 0;
            for (int64_t o = 0; o < kRouted; ++o)
              total += 1 / (1 + std::exp(-at[static_cast<size_t>(t * kRouted + o)]));
            mean += 1 / (1 + std::exp(-at[static_cast<size_t>(t * kRouted + e)])) / total / double{kLength};
            for (int64_t i = 0; i < kOfRow; ++i) count += chosen[static_cast<size_t>(t * kOfRow + i)] == e;
          }
          sum += double{kRouted} / (kOfRow * kLength) * count * mean;  // f_e P_e
        }
      return double{scale} * double{weight} * double{kLength} *
             sum;  // per row: kLength times that of a sequence's mean
    };
    std::vector<double> at(logits.begin(), logits.end());
    for (size_t i = 0; i < at.size(); ++i) {
      const double kept = at[i];
      at[i] = kept + 1e-3;
      const double above = loss(at);
      at[i] = kept - 1e-3;
      const double below = loss(at);
      at[i] = kept;
      EXPECT_NEAR(got[i], (above - below) / 2e-3, 1e-5) << i;
    }
  });
}

}  // namespace
}  // namespace sherd::test
