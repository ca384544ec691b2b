#include <sherd/train/guards/loss_spike.h>

#include <cmath>
#include <limits>
#include <random>

#include <sherd/base/error.h>

#include "support/message_of.h"

namespace sherd {
namespace {

/// A loss that falls as training's do, with noise.
double falling(int step, std::mt19937& random) {
  return 3 + 5 * std::exp(-step / 60.0) + std::normal_distribution<double>(0, 0.05)(random);
}

TEST(LossSpike, OneStepThatJumpsIsFoundAndNothingElse) {
  LossSpikeDetector detector(12);
  std::mt19937 random(1);
  for (int step = 1; step <= 600; ++step) {
    const bool jumps = step == 300 || step == 450;
    const auto found = detector.add(falling(step, random) + (jumps ? 2 : 0));
    EXPECT_EQ(found.has_value(), jumps) << step;
    if (!found) continue;
    EXPECT_NEAR(found->median, 3, 0.2);
    EXPECT_GT(found->deviations, 12);
    EXPECT_DOUBLE_EQ(found->deviations, (found->loss - found->median) / found->deviation);
  }
}

TEST(LossSpike, TheFormulaOfTheHeader) {
  LossSpikeDetector detector(3, 32);
  // 1, ..., 32: the median is 16.5, the median distance from it 8.
  for (int i = 1; i <= 32; ++i) EXPECT_FALSE(detector.add(i).has_value());
  const auto found = detector.add(100);
  ASSERT_TRUE(found.has_value());
  EXPECT_DOUBLE_EQ(found->median, 16.5);
  EXPECT_DOUBLE_EQ(found->deviation, 1.4826 * 8);
  // Now 2, ..., 32, 100: 16.5 + 3 * 1.4826 * 8 is 52.08 a step further up.
  EXPECT_FALSE(detector.add(52).has_value());
  EXPECT_TRUE(detector.add(60).has_value());
}

TEST(LossSpike, NoiseOfNearlyEqualLossesIsNotReported) {
  LossSpikeDetector detector(10);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(detector.add(2).has_value());
  EXPECT_FALSE(detector.add(2.09).has_value()) << "10 times 0.5 % of 2 is 0.1";
  EXPECT_TRUE(detector.add(2.11).has_value());
  EXPECT_FALSE(detector.add(1).has_value()) << "downwards is no spike";
}

TEST(LossSpike, ANewLevelIsReportedForHalfAWindowOnly) {
  LossSpikeDetector detector(10, 64);
  for (int i = 0; i < 64; ++i) detector.add(2 + 0.01 * (i % 3));
  int reported = 0;
  for (int i = 0; i < 64; ++i) reported += detector.add(4 + 0.01 * (i % 3)).has_value() ? 1 : 0;
  EXPECT_GT(reported, 16);
  EXPECT_LE(reported, 33);
}

TEST(LossSpike, EarlyLossesOnesThatAreNotFiniteAndSwitchedOff) {
  LossSpikeDetector detector(5), off(0);
  for (size_t i = 0; i + 1 < LossSpikeDetector::kLeast; ++i) {
    EXPECT_FALSE(detector.add(1).has_value());
    EXPECT_FALSE(detector.add(std::numeric_limits<double>::quiet_NaN()).has_value());
    EXPECT_FALSE(detector.add(std::numeric_limits<double>::infinity()).has_value());
  }
  EXPECT_FALSE(detector.add(50).has_value()) << "one loss short of what it needs";
  EXPECT_TRUE(detector.add(50).has_value());
  for (int i = 0; i < 100; ++i) off.add(1);
  EXPECT_FALSE(off.add(1e9).has_value());
  EXPECT_THROW(LossSpikeDetector(-1), InvalidArgument);
  EXPECT_THROW(LossSpikeDetector(std::nan("")), InvalidArgument);
  EXPECT_THROW(LossSpikeDetector(5, 31), InvalidArgument);
}

TEST(LossSpike, TheLineSaysWhereToLook) {
  EXPECT_THAT(
      describe({.loss = 9.5, .median = 3.25, .deviation = 0.25, .deviations = 25}, 812, 12.5, 12976, 16),
      AllOf(HasSubstr("step 812"), HasSubstr("9.500000"), HasSubstr("25.0 deviations"), HasSubstr("3.250000"),
            HasSubstr("grad_norm 12.5"), HasSubstr("sequences 12976 to 12991")));
}

}  // namespace
}  // namespace sherd
