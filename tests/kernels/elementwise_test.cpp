#include <limits>

#include "lab.h"

namespace sherd::test {
namespace {

constexpr int64_t kSizes[] = {0, 1, 3, 7, 8, 9, 33, 1000};

TEST(Elementwise, CastMatchesReferenceForEveryPair) {
  Floats values = normal(301, 1, 100);
  const float inf = std::numeric_limits<float>::infinity();
  for (float v : {0.0f, -0.0f, 1e-7f, 3e-8f, 70000.0f, 1.00390625f, 1e-42f, inf, -inf}) values.push_back(v);
  const auto n = static_cast<int64_t>(values.size());
  for (DType from : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (DType to : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      expect_bits_of_reference(
          [&](Lab& lab) {
            Tensor dst = lab.empty({n}, to), back = lab.empty({n});
            ops::cast(lab.s, dst, lab.tensor({n}, values, from));
            ops::cast(lab.s, back, dst);
            return lab.floats(back);
          },
          std::string(name_of(from)) + " to " + name_of(to));
    }
  }
}

TEST(Elementwise, CastToBf16MatchesReferenceForEveryUpperHalf) {
  Floats values;
  for (uint32_t upper = 0; upper < 1u << 16; ++upper)
    for (const uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      values.push_back(std::bit_cast<float>(upper << 16 | lower));
  values.push_back(1.0f / 3);  // behind whole vectors
  Lab lab;
  const Floats rounded = lab.floats(lab.tensor({std::ssize(values)}, values, DType::bf16));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto want = static_cast<float>(bf16(values[i]));
    ASSERT_TRUE(std::isnan(want) ? std::isnan(rounded[i])
                                 : std::bit_cast<uint32_t>(rounded[i]) == std::bit_cast<uint32_t>(want))
        << values[i];
  }
}

TEST(Elementwise, CastRoundsToNearestEven) {
  Lab lab;
  Tensor b = lab.tensor({3}, {1.00390625f, 1.01171875f, 1.005f}, DType::bf16);  // two ties
  EXPECT_EQ(lab.floats(b), (Floats{1.0f, 1.015625f, 1.0078125f}));
  Tensor d = lab.full({2}, 0.1, DType::f64), f = lab.empty({2});
  ops::cast(lab.s, f, d);
  EXPECT_EQ(lab.floats(f), (Floats{0.1f, 0.1f}));
}

TEST(Elementwise, FillsEveryType) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    for (DType t : {DType::f32, DType::bf16, DType::f16})
      EXPECT_EQ(lab.floats(lab.full({5}, 2.5, t)), Floats(5, 2.5f)) << name_of(t);
    auto host = [&]<class T>(T value, DType t) {
      std::vector<T> v(5);
      ops::copy_to_host(lab.s, v.data(), lab.full({5}, static_cast<double>(value), t));
      EXPECT_EQ(v, std::vector<T>(5, value)) << name_of(t);
    };
    host(-0.1, DType::f64);
    host(int32_t{-7}, DType::i32);
    host(int64_t{1} << 40, DType::i64);
    host(uint8_t{200}, DType::u8);
  }
}

TEST(Elementwise, MatchesReferenceToTheBit) {
  for (int64_t n : kSizes) {
    expect_bits_of_reference([&](Lab& lab) {
      Tensor x = lab.random({n}, 1), y = lab.random({n}, 2), out = lab.empty({n});
      ops::scale(lab.s, x, 0.3f);
      ops::scaled_add(lab.s, x, -1.7f, y);
      ops::scale_and_add(lab.s, x, 0.9f, 0.2f, y);
      ops::add(lab.s, out, x, y);
      ops::multiply(lab.s, out, out, y);
      return lab.floats(out);
    });
    expect_bits_of_reference([&](Lab& lab) {
      Tensor b = lab.random({n}, 1, DType::bf16), c = lab.random({n}, 2, DType::bf16), x = lab.random({n}, 3);
      ops::scale(lab.s, b, 0.3f);
      ops::add(lab.s, b, b, c);  // out is an input
      ops::multiply(lab.s, c, b, c);
      ops::add(lab.s, b, b, c);
      ops::scaled_add(lab.s, x, 0.7f, b);
      return lab.floats(x);
    });
  }
}

TEST(Elementwise, KnownValues) {
  Lab lab;
  Tensor x = lab.tensor({3}, {1, 2, 3}), y = lab.tensor({3}, {10, 20, 30});
  ops::scaled_add(lab.s, x, 2, y);
  EXPECT_EQ(lab.floats(x), (Floats{21, 42, 63}));
  ops::scale_and_add(lab.s, x, 0.5f, -1, y);
  EXPECT_EQ(lab.floats(x), (Floats{0.5f, 1, 1.5f}));
  ops::add(lab.s, x, x, y);
  EXPECT_EQ(lab.floats(x), (Floats{10.5f, 21, 31.5f}));
}

TEST(Elementwise, ScaleByReadsItsFactorOnTheStream) {
  Lab lab;
  Tensor x = lab.tensor({2}, {1, -3}), factor = lab.full({1}, 5);
  ops::fill(lab.s, factor, 0.5);  // queued before, run before
  ops::scale_by(lab.s, x, factor);
  EXPECT_EQ(lab.floats(x), (Floats{0.5f, -1.5f}));
  ops::fill(lab.s, factor, 1);
  ops::scale_by(lab.s, x, factor);
  EXPECT_EQ(lab.floats(x), (Floats{0.5f, -1.5f}));
}

TEST(Elementwise, SumAddsInDouble) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    Tensor out = lab.full({1}, 0.25, DType::f64);
    ops::accumulate_sum(lab.s, out, lab.tensor({4}, {1e8f, 1, -1e8f, 2}));  // fp32 would lose the 1
    ops::accumulate_sum(lab.s, out, lab.empty({0}));
    double value = 0;
    ops::copy_to_host(lab.s, &value, out);
    EXPECT_EQ(value, 3.25);
  }
}

/// Wherever a range is cut, every element keeps its bits: shards must equal the whole.
TEST(Elementwise, BitsDoNotDependOnThePlaceInTheRange) {
  Lab lab;
  const int64_t n = 200;
  Tensor src = lab.random({n}, 2);
  auto run = [&](const std::vector<int64_t>& cuts) {
    Tensor x = lab.random({n}, 1);
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      Tensor part = x.flat(cuts[i], cuts[i + 1]), from = src.flat(cuts[i], cuts[i + 1]);
      ops::scaled_add(lab.s, part, 0.37f, from);
      ops::scale_and_add(lab.s, part, 0.93f, 1.19f, from);
    }
    return bits(lab.floats(x));
  };
  const auto whole = run({0, n});
  EXPECT_EQ(run({0, 1, 2, 5, 12, 19, 50, 83, 84, 199, n}), whole);
  EXPECT_EQ(run({0, 101, n}), whole);
}

}  // namespace
}  // namespace sherd::test
