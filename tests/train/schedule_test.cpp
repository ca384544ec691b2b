#include <sherd/train/schedule.h>

#include <cmath>

#include <gtest/gtest.h>

namespace sherd {
namespace {

TEST(LearningRate, ConstantAfterLinearWarmUp) {
  Schedule c{.steps = 100};
  c.lr = 0.5;
  EXPECT_EQ(learning_rate(c, 0), 0.5);
  c.warmup = 4;
  EXPECT_EQ(learning_rate(c, 0), 0.125);
  EXPECT_EQ(learning_rate(c, 1), 0.25);
  EXPECT_EQ(learning_rate(c, 3), 0.5);
  EXPECT_EQ(learning_rate(c, 4), 0.5);
  EXPECT_EQ(learning_rate(c, 1000), 0.5);
}

TEST(LearningRate, CosineFallsToATenth) {
  Schedule c{.steps = 100};
  c.lr = 1.0;
  c.decay = RateDecay::cosine;
  c.warmup = 10;
  c.steps = 110;
  EXPECT_EQ(learning_rate(c, 9), 1.0);
  EXPECT_EQ(learning_rate(c, 10), 1.0);
  EXPECT_NEAR(learning_rate(c, 60), 0.55, 1e-12);
  EXPECT_NEAR(learning_rate(c, 35), 0.1 + 0.45 * (1 + std::sqrt(0.5)), 1e-12);
  EXPECT_NEAR(learning_rate(c, 110), 0.1, 1e-12);
  EXPECT_NEAR(learning_rate(c, 500), 0.1, 1e-12);
  for (int64_t step = 10; step < 110; ++step) EXPECT_GT(learning_rate(c, step), learning_rate(c, step + 1));
}

TEST(LearningRate, WarmUpThatFillsTheRun) {
  Schedule c{.steps = 100};
  c.lr = 1.0;
  c.decay = RateDecay::cosine;
  c.warmup = c.steps = 10;
  EXPECT_EQ(learning_rate(c, 9), 1.0);
  EXPECT_EQ(learning_rate(c, 10), 1.0);
}

}  // namespace
}  // namespace sherd
