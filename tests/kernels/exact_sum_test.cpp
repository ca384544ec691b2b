#include <sherd/kernels/squares/exact_sum.h>

#include <algorithm>
#include <limits>

#include "lab.h"

namespace sherd::test {
namespace {

using Words = std::vector<int64_t>;
__extension__ typedef unsigned __int128 Wide;

/// Adds `parts` one after the other.
Words squares(Lab& lab, const std::vector<Floats>& parts) {
  Tensor acc = lab.full({ExactSum::kWords}, 0, DType::i64);
  for (const Floats& part : parts)
    ops::accumulate_squares(lab.s, acc, lab.tensor({static_cast<int64_t>(part.size())}, part));
  Words words(ExactSum::kWords);
  ops::copy_to_host(lab.s, words.data(), acc);
  return words;
}

/// Floats of every magnitude, subnormals and zeros included.
Floats wild(int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  Floats v(static_cast<size_t>(count));
  for (float& x : v) {
    x = std::bit_cast<float>(static_cast<uint32_t>(engine()));
    if (!std::isfinite(x)) x = 0;
  }
  return v;
}

TEST(ExactSum, SmallIntegersAreExact) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const Words w = squares(lab, {{3, -4, 0, -0.0f, 12}});
    EXPECT_EQ(ExactSum::value(w), 169);
    EXPECT_EQ(ExactSum::norm(w), 13);
    EXPECT_EQ(w[ExactSum::kZeros], 2);
    EXPECT_EQ(w[ExactSum::kNonFinite], 0);
  }
}

TEST(ExactSum, EmptySumIsZero) {
  Lab lab;
  const Words w = squares(lab, {{}});
  EXPECT_EQ(w, Words(ExactSum::kWords, 0));
  EXPECT_EQ(ExactSum::value(w), 0);
}

TEST(ExactSum, SingleSquaresAreExactOverTheWholeRange) {
  Lab lab;
  for (float x : {0x1p-149f, 0x1.8p-140f, 0x1p-126f, 1.1f, 0x1.fffffep127f, -0x1.234568p60f}) {
    EXPECT_EQ(ExactSum::value(squares(lab, {{x}})), double(x) * double(x)) << x;  // 48 bits: exact in double
    EXPECT_EQ(ExactSum::norm(squares(lab, {{x}})), std::abs(x));
  }
}

TEST(ExactSum, NonFiniteElementsAreCountedAndLeftOut) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    Words w = squares(lab, {{1, kInf, -kInf, std::nanf(""), 2}});
    EXPECT_EQ(w[ExactSum::kNonFinite], 3);
    EXPECT_TRUE(std::isnan(ExactSum::value(w)));
    EXPECT_TRUE(std::isnan(ExactSum::norm(w)));
    w[ExactSum::kNonFinite] = 0;
    EXPECT_EQ(ExactSum::value(w), 5);
  }
}

TEST(ExactSum, OrderAndSplitsDoNotMatter) {
  Lab lab, reference("reference");
  Floats x = wild(3001, 1);
  const Words whole = squares(lab, {x});
  EXPECT_EQ(whole, squares(reference, {x}));
  std::mt19937 engine(2);
  for (int round = 0; round < 5; ++round) {
    std::shuffle(x.begin(), x.end(), engine);
    std::vector<Floats> parts;
    for (size_t i = 0; i < x.size();) {
      const size_t n = std::min<size_t>(engine() % 700, x.size() - i);
      parts.emplace_back(x.begin() + static_cast<int64_t>(i), x.begin() + static_cast<int64_t>(i + n));
      i += n;
    }
    EXPECT_EQ(squares(lab, parts), whole);
  }
}

TEST(ExactSum, DigitsOfRanksAddUp) {
  Lab lab;
  const Floats a = wild(500, 3), b = wild(700, 4);
  Words sum = squares(lab, {a});
  const Words other = squares(lab, {b});
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
  const Words whole = squares(lab, {a, b});
  EXPECT_EQ(ExactSum::value(sum), ExactSum::value(whole));  // carries pending
  ExactSum::normalise(sum);
  EXPECT_EQ(sum, whole);
}

TEST(ExactSum, FullBinsDoNotOverflow) {
  Lab lab;
  const int64_t n = 5 * 65536 + 5;  // several flushes of the largest mantissa
  const float x = 0x1.fffffep0f;
  const uint64_t mantissa = 0xffffff;
  const Words w = squares(lab, {Floats(static_cast<size_t>(n), x)});
  const Wide exact = static_cast<Wide>(mantissa * mantissa) * static_cast<Wide>(n);  // 67 bits
  EXPECT_EQ(ExactSum::value(w), std::ldexp(static_cast<double>(exact), -46));
}

TEST(ExactSum, AgreesWithWideIntegers) {
  Lab lab;
  std::mt19937 engine(5);
  for (int round = 0; round < 50; ++round) {
    Floats x;
    Wide sum = 0;
    for (int i = 0; i < 40; ++i) {
      const auto v = static_cast<int64_t>(engine() % (1u << 24)) << engine() % 30;
      x.push_back(static_cast<float>(v));
      sum += static_cast<Wide>(v) * static_cast<Wide>(v);
    }
    EXPECT_EQ(ExactSum::value(squares(lab, {x})), static_cast<double>(sum));
  }
}

TEST(ExactSum, RoundsToNearestEven) {
  Words w(ExactSum::kWords, 0);
  auto value_of = [&](int64_t high, int64_t middle, int64_t low, int64_t lowest) {
    w[10] = high, w[9] = middle, w[8] = low, w[0] = lowest;  // digit 10 has weight 1
    return ExactSum::value(w);
  };
  // A full digit 10 leaves 21 of the 53 bits for digit 9: its bit 11 is the last place.
  const int64_t top = 0x80000000;
  const double ulp = 0x1p-21, base = 0x1p31;
  EXPECT_EQ(value_of(top, 0x400, 0, 0), base);        // exactly half: to even
  EXPECT_EQ(value_of(top, 0x400, 0, 1), base + ulp);  // a bit far below decides
  EXPECT_EQ(value_of(top, 0x400, 1, 0), base + ulp);
  EXPECT_EQ(value_of(top, 0x3ff, 0xffffffff, 7), base);
  EXPECT_EQ(value_of(top, 0xc00, 0, 0), base + 2 * ulp);      // half above an odd one
  EXPECT_EQ(value_of(0xffffffff, 0xfffffc00, 0, 0), 0x1p32);  // carries into the next power of two
  EXPECT_EQ(value_of(1, 0, 0, 0), 1);
}

}  // namespace
}  // namespace sherd::test
