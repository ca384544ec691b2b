// Exact sums of magnitudes, the largest magnitude, clamps, and clip factors of other norms.
#include <sherd/kernels/squares/exact_sum.h>

#include <cmath>
#include <limits>

#include "lab.h"

namespace sherd::test {
namespace {

/// Stretches of equal size, far apart, with outliers, zeros and the like.
Floats stretches(int64_t n) {
  Floats x;
  for (int64_t i = 0; i < n; ++i) {
    const int stretch = static_cast<int>(i / 400);
    float v = std::ldexp(1 + static_cast<float>(i % 97) / 97, (stretch * 83) % 250 - 125);
    if (i % 61 == 0) v = 0;
    if (i % 173 == 0) v = i % 2 ? 0x1.fffffep127f : 0x1p-149f;
    if (i % 397 == 0) v = i % 2 ? kInf : NAN;
    x.push_back(i % 3 ? v : -v);
  }
  return x;
}

std::vector<int64_t> magnitudes(Lab& lab, const Floats& x, int64_t begin = 0) {
  const auto n = static_cast<int64_t>(x.size());
  const Tensor acc = lab.full({ExactSum::kWords}, 0, DType::i64);
  const Tensor part = lab.tensor({n}, x).flat(begin, n);
  const SquaresSegment segment{part.data<float>(), part.numel(), acc.data<int64_t>()};
  ops::accumulate_magnitudes(lab.s, {&segment, 1});
  std::vector<int64_t> words(ExactSum::kWords);
  ops::copy_to_host(lab.s, words.data(), acc);
  return words;
}

TEST(Magnitudes, SmallNumbersAreExact) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const auto words = magnitudes(lab, {3, -4, 0, -0.0f, 0.25f, 0x1p-149f});
    EXPECT_EQ(ExactSum::value(words), 7.25);
    EXPECT_EQ(words[ExactSum::kZeros], 2);
    EXPECT_EQ(words[ExactSum::kNonFinite], 0);
    EXPECT_TRUE(std::isnan(ExactSum::value(magnitudes(lab, {1, NAN}))));
    EXPECT_EQ(ExactSum::value(magnitudes(lab, {0x1.fffffep127f, -0x1.fffffep127f})), 0x1.fffffep128);
    EXPECT_EQ(ExactSum::value(magnitudes(lab, {})), 0);
  }
}

TEST(Magnitudes, EveryPlaceLengthAndSize) {
  Lab fast, slow("reference");
  const auto compare = [&](const Floats& x, const std::string& what) {
    for (int64_t begin = 0; begin < 4 && begin <= static_cast<int64_t>(x.size()); ++begin)
      EXPECT_EQ(magnitudes(fast, x, begin), magnitudes(slow, x, begin)) << what << " from " << begin;
  };
  for (int64_t n = 0; n < 14; ++n) compare(normal(n, 1), std::to_string(n));
  compare(normal(9000, 1), "9000");
  compare(stretches(6000), "stretches");
  compare(Floats(3000, 0.0f), "zeros");
  compare(Floats(70000, 0x1.fffffep127f), "largest");
  compare(Floats(3000, -0x1.8p-130f), "subnormal");
  compare(Floats(200, -kInf), "infinite");
}

// Tensors of many sizes go to two sums and to none, and two numbers count what is not finite.
TEST(Magnitudes, OfManyPiecesInOnePass) {
  Floats x = normal(40000, 7);
  for (size_t i = 100; i < x.size(); i += 991) x[i] = i % 2 ? NAN : kInf;
  constexpr int64_t kWords = ExactSum::kWords;
  const auto run = [&](Lab& lab) {
    const Tensor words = lab.full({2 * kWords + 2}, 0, DType::i64), largest = lab.full({1}, 0.5);
    const Tensor data = lab.tensor({static_cast<int64_t>(x.size())}, x);
    auto* const w = words.data<int64_t>();
    std::vector<SquaresSegment> segments;
    for (int64_t at = 0, i = 0; at < data.numel(); ++i) {
      const int64_t count = std::min(data.numel() - at, i % 11 == 4 ? 0 : i % 17 == 5 ? 5000 : i * 29 % 311);
      segments.push_back({data.data<float>() + at, count, i % 3 == 2 ? nullptr : w + (i % 3) * kWords,
                          i % 5 == 4 ? nullptr : w + 2 * kWords + i % 2});
      at += count;
    }
    EXPECT_GT(segments.size(), 48u) << "more than one launch takes";
    ops::accumulate_magnitudes(lab.s, segments);
    ops::largest_magnitude(lab.s, largest, segments);
    std::vector<int64_t> got(static_cast<size_t>(words.numel()));
    ops::copy_to_host(lab.s, got.data(), words);
    return std::pair(got, lab.floats(largest));
  };
  Lab fast, slow("reference");
  const auto want = run(slow);
  EXPECT_GT(want.first[ExactSum::kNonFinite], 0);
  EXPECT_EQ(run(fast), want);
}

TEST(LargestMagnitude, IsThatOfFiniteElementsAndOfWhatWasThere) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const auto largest = [&](const Floats& x, double before) {
      const Tensor out = lab.full({1}, before), t = lab.tensor({static_cast<int64_t>(x.size())}, x);
      const SquaresSegment segment{t.data<float>(), t.numel()};
      ops::largest_magnitude(lab.s, out, {&segment, 1});
      return lab.floats(out).front();
    };
    EXPECT_EQ(largest({1, -7, 3, kInf, NAN}, 0), 7);
    EXPECT_EQ(largest({1, -7, 3}, 9), 9);
    EXPECT_EQ(largest({-0.0f, 0}, 0), 0);
    EXPECT_EQ(largest({0x1p-149f}, 0), 0x1p-149f);
    EXPECT_EQ(largest({}, 2), 2);
    Floats many = normal(50000, 3);
    many[41234] = -100;
    EXPECT_EQ(largest(many, 0), 100);
  }
}

TEST(Clamp, KeepsNaNAndTheRestWithinTheLimit) {
  const Floats x = stretches(5000);
  const auto run = [&](Lab& lab, double limit) {
    const Tensor t = lab.tensor({5000}, x);
    std::vector<ScaleSegment> pieces;
    for (int64_t at = 0, i = 0; at < 4500; at += i * 13 % 170, ++i)
      if (i % 4 != 3) pieces.push_back({t.data<float>() + at, i * 13 % 170});
    ops::clamp(lab.s, pieces, limit);
    std::vector<uint32_t> bits(5000);  // NaN compares by bits
    ops::copy_to_host(lab.s, bits.data(), t);
    return bits;
  };
  for (const double limit : {0.0, 0.75, 1e30, static_cast<double>(kInf)}) {
    Lab fast, slow("reference");
    EXPECT_EQ(run(fast, limit), run(slow, limit)) << limit;
  }
  Lab lab;
  const Tensor t = lab.tensor({5}, {-3, 0.5f, NAN, kInf, -kInf});
  const ScaleSegment all{t.data<float>(), 5}, none{nullptr, 3};
  ops::clamp(lab.s, {&all, 1}, 2);
  const Floats got = lab.floats(t);
  EXPECT_EQ(got[0], -2);
  EXPECT_EQ(got[1], 0.5f);
  EXPECT_TRUE(std::isnan(got[2]));
  EXPECT_EQ(got[3], 2);
  EXPECT_EQ(got[4], -2);
  EXPECT_THROW(ops::clamp(lab.s, {&none, 1}, 1), ShapeMismatch);
  EXPECT_THROW(ops::clamp(lab.s, {&all, 1}, -1), ShapeMismatch);
  EXPECT_THROW(ops::clamp(lab.s, {&all, 1}, NAN), ShapeMismatch);
}

TEST(ClipFactor, OfOtherNorms) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const auto run = [&](const Floats& x, NormKind kind, double max_norm) {
      const Tensor acc = lab.full({ExactSum::kWords}, 0, DType::i64), factor = lab.empty({1}),
                   total = lab.empty({ExactSum::kWords}, DType::i64), skip = lab.full({1}, 7, DType::i64),
                   largest = lab.full({1}, 0), t = lab.tensor({static_cast<int64_t>(x.size())}, x);
      const SquaresSegment segment{t.data<float>(), t.numel(), acc.data<int64_t>()};
      kind == NormKind::one ? ops::accumulate_magnitudes(lab.s, {&segment, 1})
                            : ops::accumulate_squares(lab.s, {&segment, 1});
      ops::largest_magnitude(lab.s, largest, {&segment, 1});
      ops::clip_factor(lab.s, factor, total, {&acc, 1}, max_norm, skip, kind,
                       kind == NormKind::infinity ? largest : Tensor());
      int64_t skips = 0;
      ops::copy_to_host(lab.s, &skips, skip);
      return std::pair(lab.floats(factor).front(), skips);
    };
    EXPECT_EQ(run({3, -4}, NormKind::one, 3.5), std::pair(3.5f / (7 + 1e-6f), int64_t{0}));
    EXPECT_EQ(run({3, -4}, NormKind::infinity, 2), std::pair(2 / (4 + 1e-6f), int64_t{0}));
    EXPECT_EQ(run({3, -4}, NormKind::infinity, 5), std::pair(1.0f, int64_t{0}));
    EXPECT_EQ(run({3, NAN}, NormKind::infinity, 2), std::pair(1.0f, int64_t{1}));
    EXPECT_EQ(run({3, kInf}, NormKind::one, 2), std::pair(1.0f, int64_t{1}));
    EXPECT_EQ(run({3e38f, 3e38f}, NormKind::one, 2), std::pair(1.0f, int64_t{1})) << "beyond fp32";
    EXPECT_EQ(run({3e38f, 3e38f}, NormKind::infinity, 3e37).second, 0) << "3e38 is a norm";
  }
}

}  // namespace
}  // namespace sherd::test
