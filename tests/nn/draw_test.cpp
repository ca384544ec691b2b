#include <sherd/nn/models/draw.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <sherd/base/error.h>
#include <sherd/kernels/random/random.h>
#include <sherd/nn/models/context.h>

#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd::nn {
namespace {

constexpr float kInfinityF32 = std::numeric_limits<float>::infinity();

std::vector<double> frequencies(const std::vector<float>& logits, const DrawOptions& options, int draws) {
  std::vector<double> all(logits.size());
  for (int i = 0; i < draws; ++i) all[static_cast<size_t>(draw_token(logits, options, 5, i))] += 1.0 / draws;
  return all;
}

TEST(Draw, GreedyTakesTheFirstOfTheLargest) {
  EXPECT_EQ(draw_token(std::vector<float>{1, 3, -2, 3}, {.temperature = 0}, 1, 1), 1);
  EXPECT_EQ(draw_token(std::vector<float>{-kInfinityF32, -5}, {.temperature = 0}, 1, 1), 1);
}

// A frequency's deviation is at most sqrt(1 / 4 n); four of them.
TEST(Draw, FollowsTheSoftmaxOfTheTemperature) {
  const std::vector<float> logits = {0, 1, -1, 2, -kInfinityF32};
  constexpr int kDraws = 20000;
  for (const float temperature : {0.5f, 1.0f, 3.0f}) {
    const std::vector<double> got = frequencies(logits, {.temperature = temperature}, kDraws);
    double total = 0;
    for (const float l : logits) total += std::exp(l / temperature);
    for (size_t i = 0; i < logits.size(); ++i)
      EXPECT_NEAR(got[i], std::exp(logits[i] / temperature) / total, 4 * std::sqrt(0.25 / kDraws));
    EXPECT_EQ(got[4], 0);
  }
}

TEST(Draw, TopPAndTopKLeaveOutTheRest) {
  // Probabilities 0.1, 0.4, 0.2, 0.3.
  const std::vector<float> logits = {std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};
  const auto kept = [&](const DrawOptions& options) {
    std::string all;
    const std::vector<double> got = frequencies(logits, options, 2000);
    for (size_t i = 0; i < 4; ++i)
      if (got[i] > 0) all += static_cast<char>('0' + i);
    return all;
  };
  EXPECT_EQ(kept({.temperature = 1, .top_p = 1}), "0123");
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.95f}), "0123");
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.85f}), "123");
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.6f}), "13");
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.0001f}), "1");
  EXPECT_EQ(kept({.temperature = 1, .top_k = 3}), "123");
  EXPECT_EQ(kept({.temperature = 1, .top_k = 1}), "1");
  EXPECT_EQ(kept({.temperature = 1, .top_k = 100}), "0123");
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.7f, .top_k = 3}), "13");  // 4/9 and 3/9 of what is left
  const std::vector<double> two = frequencies(logits, {.temperature = 1, .top_k = 2}, 20000);
  EXPECT_NEAR(two[1], 4.0 / 7, 4 * std::sqrt(0.25 / 20000));
  // The first of equal ones.
  EXPECT_EQ(frequencies({1, 1, 1}, {.temperature = 1, .top_k = 2}, 100)[2], 0);
}

TEST(Draw, IsAPureFunctionOfSeedAndPosition) {
  const std::vector<float> logits(50);
  const auto drawn = [&](uint64_t seed) {
    std::vector<int32_t> all;
    for (int64_t i = 0; i < 40; ++i) all.push_back(draw_token(logits, {}, seed, i));
    return all;
  };
  EXPECT_EQ(drawn(1), drawn(1));
  EXPECT_NE(drawn(1), drawn(2));
}

// The byte model's samples were drawn like this before there were options.
TEST(Draw, DefaultsKeepTheBitsOfOlderSamples) {
  std::mt19937 engine(3);
  std::normal_distribution<float> normal(0, 2);
  for (int64_t i = 0; i < 300; ++i) {
    std::vector<float> logits(256), weights(256);
    for (float& l : logits) l = normal(engine);
    const float top = *std::max_element(logits.begin(), logits.end());
    double total = 0;
    for (size_t v = 0; v < 256; ++v) total += weights[v] = std::exp((logits[v] - top) / 0.7f);
    const uint64_t key = hash64(9, "sample");
    const auto words = philox4x32({static_cast<uint32_t>(i), 0, 0, 0},
                                  {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
    double left = words[0] * 0x1p-32 * total;
    int32_t pick = 0;
    while (pick + 1 < 256 && (left -= weights[static_cast<size_t>(pick)]) >= 0) ++pick;
    ASSERT_EQ(draw_token(logits, {}, 9, i), pick);
  }
}

TEST(Draw, SaysWhatIsWrong) {
  const auto message = [](const std::vector<float>& logits, const DrawOptions& options = {}) {
    return message_of<InvalidArgument>([&] { draw_token(logits, options, 1, 1); });
  };
  EXPECT_THAT(message({1, std::nanf("")}), HasSubstr("the logit of token 1 is nan"));
  EXPECT_THAT(message({kInfinityF32, 1}, {.temperature = 0}), HasSubstr("token 0 is inf"));
  EXPECT_THAT(message({}), HasSubstr("of 0 logits"));
  EXPECT_THAT(message({-kInfinityF32, -kInfinityF32}), HasSubstr("none is above"));
  EXPECT_THAT(message({1}, {.temperature = -1}), HasSubstr("temperature -1"));
  EXPECT_THAT(message({1}, {.temperature = std::nanf("")}), HasSubstr("temperature"));
  EXPECT_THAT(message({1}, {.top_p = 0}), HasSubstr("top_p 0"));
  EXPECT_THAT(message({1}, {.top_p = 1.5f}), HasSubstr("top_p 1.5"));
  EXPECT_THAT(message({1}, {.top_k = -1}), HasSubstr("top_k -1"));
}

TEST(SlidingContext, RunsNewTokensAndMovesWhenFull) {
  for (const int64_t capacity : {1, 2, 3, 4, 5, 8, 100}) {
    SlidingContext context(capacity);
    int64_t cached = 0, rows = 0, runs = 0;
    int64_t begin = 0;
    for (int64_t tokens = std::min<int64_t>(3, capacity); tokens < 10 * capacity + 3; ++tokens, ++runs) {
      const SlidingContext::Rows next = context.next(tokens);
      if (next.restart) {
        cached = 0;
        begin = next.begin;
      }
      ASSERT_EQ(next.end, tokens);
      ASSERT_EQ(next.begin, begin + cached);  // nothing is left out
      cached += next.end - next.begin;
      rows += next.end - next.begin;
      ASSERT_LE(cached, capacity);
      if (next.restart) {
        ASSERT_GE(cached, capacity - capacity / 4);
      }
    }
    if (capacity >= 4) {
      EXPECT_LE(rows, 5 * runs + capacity) << capacity;
    }
  }
}

TEST(SlidingContext, TakesTheEndOfALongPrompt) {
  SlidingContext context(8);
  const SlidingContext::Rows rows = context.next(100);
  EXPECT_TRUE(rows.restart);
  EXPECT_EQ(rows.begin, 94);
  EXPECT_EQ(rows.end, 100);
  EXPECT_THROW(context.next(100), InvalidArgument);
  EXPECT_THROW(SlidingContext(0), InvalidArgument);
}

}  // namespace
}  // namespace sherd::nn
