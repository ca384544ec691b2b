#include <sherd/kernels/random/random.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "lab.h"

namespace sherd::test {
namespace {

using Block = std::array<uint32_t, 4>;

// The known-answer vectors published with the Random123 library.
TEST(Philox, KnownAnswers) {
  constexpr uint32_t f = 0xffffffff;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({f, f, f, f}, {f, f}), (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Hash64, SeparatesSeedsAndNames) {
  std::set<uint64_t> keys;
  for (uint64_t seed = 0; seed < 50; ++seed)
    for (const char* name : {"", "a", "b", "ab", "ba", "blocks.0.w", "blocks.1.w", "blocks.10.w"})
      keys.insert(hash64(seed, name));
  EXPECT_EQ(keys.size(), 50u * 8u);
  static_assert(hash64(1, "w") == hash64(1, "w"));
}

Floats draw(Lab& lab, int64_t begin, int64_t count, uint64_t seed = 7, const char* name = "w") {
  Tensor t = lab.empty({count});
  ops::random_normal(lab.s, t, begin, seed, name, 0.5f, 2.0f);
  return lab.floats(t);
}

TEST(RandomNormal, AnElementDependsOnlyOnItsIndex) {
  Lab lab;
  const Floats all = draw(lab, 0, 103);
  for (int64_t begin : {0, 1, 2, 3, 4, 5, 50, 102, 103}) {
    for (int64_t count : {0, 1, 2, 3, 4, 7}) {
      const int64_t end = std::min<int64_t>(begin + count, 103);
      EXPECT_EQ(bits(draw(lab, begin, end - begin)), bits(Floats(all.begin() + begin, all.begin() + end)));
    }
  }
}

TEST(RandomNormal, HasTheMomentsOfANormal) {
  Lab lab;
  const int64_t n = 200000;
  double mean = 0, variance = 0, fourth = 0;
  for (float x : draw(lab, int64_t{1} << 40, n)) {
    const double z = (x - 0.5) / 2;
    mean += z / n;
    variance += z * z / n;
    fourth += z * z * z * z / n;
  }
  EXPECT_NEAR(mean, 0, 4 / std::sqrt(double(n)));  // four standard errors each
  EXPECT_NEAR(variance, 1, 4 * std::sqrt(2.0 / n));
  EXPECT_NEAR(fourth, 3, 4 * std::sqrt(96.0 / n));
}

TEST(RandomNormal, SequencesOfOtherSeedsAndNamesDiffer) {
  Lab lab;
  const auto base = bits(draw(lab, 0, 16));
  EXPECT_NE(base, bits(draw(lab, 0, 16, 8)));
  EXPECT_NE(base, bits(draw(lab, 0, 16, 7, "v")));
  EXPECT_NE(base, bits(draw(lab, int64_t{1} << 34, 16)));  // the counter's high word counts
}

TEST(RandomNormal, ReferenceAgrees) {
  // CUDA's log, sine and cosine are within two units in the last place of a double: rounded to fp32, one at
  // most.
  expect_bits_of_reference([](Lab& lab) { return draw(lab, 3, 1001); }, 0x1p-23);
}

Floats uniform(Lab& lab, int64_t begin, int64_t count, float low = -1, float high = 3) {
  Tensor t = lab.empty({count});
  ops::random_uniform(lab.s, t, begin, 7, "w", low, high);
  return lab.floats(t);
}

Floats truncated(Lab& lab, int64_t begin, int64_t count, float low, float high) {
  Tensor t = lab.empty({count});
  ops::random_truncated_normal(lab.s, t, begin, 7, "w", 0.5f, 2.0f, low, high);
  return lab.floats(t);
}

TEST(RandomBounded, AnElementDependsOnlyOnItsIndex) {
  Lab lab;
  const auto draws = {std::function([&](int64_t b, int64_t n) { return uniform(lab, b, n); }),
                      std::function([&](int64_t b, int64_t n) { return truncated(lab, b, n, 0, 1); })};
  for (auto& of : draws) {
    const Floats all = of(0, 103);
    for (int64_t begin : {0, 1, 2, 3, 4, 5, 50, 102, 103})
      for (int64_t count : {0, 1, 2, 3, 4, 7}) {
        const int64_t end = std::min<int64_t>(begin + count, 103);
        EXPECT_EQ(bits(of(begin, end - begin)), bits(Floats(all.begin() + begin, all.begin() + end)));
      }
    EXPECT_NE(bits(all), bits(of(int64_t{1} << 34, 103)));
  }
}

TEST(RandomBounded, HasTheMomentsOfItsDistribution) {
  Lab lab;
  const int64_t n = 200000;
  const auto moments = [&](const Floats& values) {
    double mean = 0, square = 0;
    for (float x : values) mean += x / double(n), square += double{x} * x / double(n);
    return std::pair(mean, square - mean * mean);
  };
  // Uniform on [-1, 3]: mean 1, variance 16/12, fourth central moment 16^2/80. Four standard errors each.
  const auto [mean, variance] = moments(uniform(lab, int64_t{1} << 40, n));
  const double want = 16.0 / 12;
  EXPECT_NEAR(mean, 1, 4 * std::sqrt(want / double(n)));
  EXPECT_NEAR(variance, want, 4 * std::sqrt((256.0 / 80 - want * want) / double(n)));
  // N(0.5, 2) on [-1.5, 2.5], which is one stddev to each side: the mean stays, and the variance is
  // 4 (1 - 2 phi(1) / (Phi(1) - Phi(-1))) = 4 * 0.29112509; bounded by 2, it has a fourth moment below 4 times that.
  const auto [mean2, variance2] = moments(truncated(lab, int64_t{1} << 40, n, -1.5f, 2.5f));
  const double want2 = 4 * 0.29112509;
  EXPECT_NEAR(mean2, 0.5, 4 * std::sqrt(want2 / double(n)));
  EXPECT_NEAR(variance2, want2, 4 * std::sqrt(4 * want2 / double(n)));
}

TEST(RandomBounded, ValuesAreWithinTheBounds) {
  Lab lab;
  for (const float x : uniform(lab, 0, 10000, 0.25f, 0.25f)) EXPECT_EQ(x, 0.25f);
  const auto inside = [](const Floats& values, float low, float high) {
    EXPECT_GE(*std::min_element(values.begin(), values.end()), low);
    EXPECT_LE(*std::max_element(values.begin(), values.end()), high);
  };
  inside(uniform(lab, 0, 10000), -1, 3);
  inside(truncated(lab, 0, 10000, 0, 0.125f), 0, 0.125f);
  inside(truncated(lab, 0, 10000, 4.5f, 40), 4.5f, 40);  // in the tail: one candidate in 44 is there
}

TEST(RandomBounded, WhatCannotBeIsRefused) {
  Lab lab;
  const Tensor t = lab.empty({4});
  EXPECT_THROW(ops::random_uniform(lab.s, t, 0, 7, "w", 1, 0), InvalidArgument);
  EXPECT_THROW(ops::random_uniform(lab.s, t, -1, 7, "w", 0, 1), InvalidArgument);
  EXPECT_THROW(ops::random_uniform(lab.s, t, 0, 7, "w", 0, INFINITY), InvalidArgument);
  EXPECT_THROW(ops::random_truncated_normal(lab.s, t, 0, 7, "w", 0, 0, -1, 1), InvalidArgument);
  EXPECT_THROW(ops::random_truncated_normal(lab.s, t, 0, 7, "w", 0, 1, 4, 5), InvalidArgument);
}

TEST(RandomBounded, ReferenceAgrees) {
  expect_bits_of_reference([](Lab& lab) { return uniform(lab, 3, 1001); });
  expect_bits_of_reference([](Lab& lab) { return truncated(lab, 3, 1001, -1, 2); }, 0x1p-23);  // as above
}

}  // namespace
}  // namespace sherd::test
