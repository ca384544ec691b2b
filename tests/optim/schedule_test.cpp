#include <sherd/optim/schedule.h>

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sherd/base/error.h>

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

TEST(LearningRate, FallsAlongALine) {
  const Schedule c{.lr = 2, .warmup = 2, .decay = RateDecay::linear, .steps = 12, .least = 0.5};
  EXPECT_EQ(learning_rate(c, 1), 2);
  EXPECT_EQ(learning_rate(c, 2), 2);
  EXPECT_EQ(learning_rate(c, 7), 1.5);
  EXPECT_EQ(learning_rate(c, 12), 1);
  EXPECT_EQ(learning_rate(c, 1000), 1);
}

TEST(LearningRate, StaysAndThenFalls) {
  Schedule c{.lr = 2, .warmup = 4, .decay = RateDecay::wsd, .steps = 100, .least = 0, .decay_steps = 20};
  EXPECT_EQ(learning_rate(c, 0), 0.5);
  EXPECT_EQ(learning_rate(c, 4), 2);
  EXPECT_EQ(learning_rate(c, 80), 2);
  EXPECT_EQ(learning_rate(c, 85), 1.5);
  EXPECT_EQ(learning_rate(c, 90), 1);
  EXPECT_EQ(learning_rate(c, 100), 0);
  EXPECT_EQ(learning_rate(c, 200), 0);
  c.decay_steps = 0;
  EXPECT_EQ(learning_rate(c, 99), 2);
  c.decay_steps = 1000;  // it falls from the end of warm-up on
  EXPECT_EQ(learning_rate(c, 52), 1);
}

TEST(LearningRate, WhatCannotBeIsAllNamed) {
  EXPECT_TRUE(problems_of(Schedule{}).empty());
  const auto wrong = problems_of(
      {.lr = -1, .warmup = -2, .decay = RateDecay::wsd, .steps = 10, .least = 1.5, .decay_steps = 20});
  EXPECT_THAT(wrong,
              testing::ElementsAre(testing::HasSubstr("learning rate -1"), testing::HasSubstr("warmup -2"),
                                   testing::HasSubstr("least 1.5"), testing::HasSubstr("decay_steps 20")));
  for (const RateDecay d : {RateDecay::constant, RateDecay::cosine, RateDecay::linear, RateDecay::wsd})
    EXPECT_EQ(parse_rate_decay(name_of(d)), d);
  EXPECT_THROW((void)parse_rate_decay("steps"), InvalidArgument);
}

}  // namespace
}  // namespace sherd
