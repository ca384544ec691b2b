#include <sherd/nn/ops.h>

#include <numeric>

#include "kernels/lab.h"
#include "nn/kernels/targets.h"

namespace sherd::test {
namespace {

// Rows of up to 130,000: more than the shared memory of a multiprocessor holds.
const std::initializer_list<std::array<int64_t, 2>> kLongRows = {{3, 1030},  {2, 12288}, {2, 16500},
                                                                 {2, 24576}, {2, 60000}, {1, 130000}};

Floats forward(Lab& lab, int64_t rows, int64_t vocab, DType t, float spread) {
  Tensor losses = lab.empty({rows});
  ops::cross_entropy_forward(lab.s, losses, lab.random({rows, vocab}, 1, t, spread),
                             lab.ints({rows}, targets(rows, vocab)));
  return lab.floats(losses);
}

Floats backward(Lab& lab, int64_t rows, int64_t vocab, DType t, float spread, bool in_place) {
  Tensor logits = lab.random({rows, vocab}, 1, t, spread),
         d = in_place ? logits : lab.empty({rows, vocab}, t);
  ops::cross_entropy_backward(lab.s, d, logits, lab.ints({rows}, targets(rows, vocab)), 0.25f);
  return lab.floats(d);
}

TEST(CrossEntropy, KnownValues) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    // Probabilities 1/4, 3/4 and, far from overflow's edge, 1.
    Tensor logits = lab.tensor({2, 2}, {0, std::log(3.0f), 1000, -1000}), losses = lab.empty({2});
    Tensor t = lab.ints({2}, {0, 0}), d = lab.empty({2, 2});
    ops::cross_entropy_forward(lab.s, losses, logits, t);
    expect_close(lab.floats(losses), {std::log(4.0f), 0}, 1e-6);
    ops::cross_entropy_backward(lab.s, d, logits, t, 2);
    expect_close(lab.floats(d), {-1.5f, 1.5f, 0, 0}, 1e-6);
  }
}

TEST(CrossEntropy, MatchesReference) {
  for (DType t : {DType::f32, DType::bf16}) {
    for (float spread : {1.0f, 40.0f}) {
      for (auto [rows, vocab] : std::initializer_list<std::array<int64_t, 2>>{
               {0, 5}, {1, 1}, {3, 7}, {5, 8}, {17, 33}, {64, 257}, {2, 5001}}) {
        const int64_t r = rows, v = vocab;
        expect_same_as_reference([&](Lab& lab) { return forward(lab, r, v, t, spread); }, 3e-6);
        for (bool in_place : {false, true})
          expect_same_as_reference([&](Lab& lab) { return backward(lab, r, v, t, spread, in_place); },
                                   t == DType::f32 ? 1e-6 : epsilon(t) / 4);
      }
    }
  }
}

TEST(CrossEntropy, LongRowsMatchReference) {
  for (DType t : {DType::f32, DType::bf16}) {
    for (auto [rows, vocab] : kLongRows) {
      const int64_t r = rows, v = vocab;
      // The f32 sum of v exponentials is off by about sqrt(v) roundings, and every probability (at most 1)
      // with it.
      const double sum = std::sqrt(static_cast<double>(v)) * 0x1p-24;
      expect_same_as_reference([&](Lab& lab) { return forward(lab, r, v, t, 4); }, 3e-6 + sum);
      expect_same_as_reference([&](Lab& lab) { return backward(lab, r, v, t, 4, true); },
                               t == DType::f32 ? 1e-6 + sum : epsilon(t) / 4);
    }
  }
}

// Learned rows have the same bits as without a mask.
TEST(CrossEntropy, RowsThatAreNotLearnedHaveNeitherLossNorGradient) {
  for (const char* kernels : {kFast, "reference"})
    for (DType t : {DType::f32, DType::bf16})
      for (int64_t vocab : {1, 7, 257, 5001}) {
        Lab lab(kernels);
        const int64_t rows = 10;
        const Tensor logits = lab.random({rows, vocab}, 1, t, 4), all = lab.empty({rows}),
                     some = lab.empty({rows});
        const Tensor d_all = lab.empty({rows, vocab}, t), d_some = lab.empty({rows, vocab}, t),
                     apart = lab.empty({rows, vocab}, t);
        const Tensor masked = lab.ints({rows}, masked_targets(rows, vocab)), losses = lab.empty({rows});
        ops::cross_entropy_forward_backward(lab.s, all, d_all, logits, lab.ints({rows}, targets(rows, vocab)),
                                            0.25f);
        ops::cross_entropy_forward_backward(lab.s, some, d_some, logits, masked, 0.25f);
        ops::cross_entropy_forward(lab.s, losses, logits, masked);
        ops::cross_entropy_backward(lab.s, apart, logits, masked, 0.25f);
        Floats want = lab.floats(all), want_d = lab.floats(d_all);
        for (int64_t i = 0; i < rows; i += 3) {
          want[static_cast<size_t>(i)] = 0;
          std::fill_n(want_d.begin() + i * vocab, vocab, 0.0f);
        }
        EXPECT_EQ(bits(lab.floats(some)), bits(want)) << kernels << vocab;
        EXPECT_EQ(bits(lab.floats(d_some)), bits(want_d)) << kernels << vocab;
        EXPECT_EQ(bits(lab.floats(losses)), bits(want)) << kernels << vocab;
        EXPECT_EQ(bits(lab.floats(apart)), bits(want_d)) << kernels << vocab;
      }
}

TEST(CrossEntropy, WithoutARowThatIsLearnedEverythingIsZero) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const Tensor logits = lab.random({3, 33}, 1, DType::f32, 4), losses = lab.empty({3});
    ops::cross_entropy_forward_backward(lab.s, losses, logits, logits, lab.ints({3}, {-1, -1, -1}), 1);
    EXPECT_EQ(lab.floats(losses), Floats(3, 0.0f)) << kernels;
    EXPECT_EQ(lab.floats(logits), Floats(99, 0.0f)) << kernels;
  }
}

// A device whose exponential has no numbers below 2^-126 gives zeros.
TEST(CrossEntropy, ProbabilitiesWithoutANormalNumberAreWithinTheSmallest) {
  const int64_t vocab = 96;
  Floats logits(static_cast<size_t>(vocab));
  for (int64_t i = 0; i < vocab; ++i) logits[static_cast<size_t>(i)] = -static_cast<float>(i) * 1.125f;
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const Tensor d = lab.empty({1, vocab}), x = lab.tensor({1, vocab}, logits);
    ops::cross_entropy_backward(lab.s, d, x, lab.ints({1}, {0}), 1);
    const Floats got = lab.floats(d);
    double sum = 0;
    for (const float l : logits) sum += std::exp(double(l));
    for (size_t i = 1; i < got.size(); ++i) {
      const double want = std::exp(double(logits[i])) / sum;
      // Exponents of up to 154 are rounded to f32 once or twice: 2 * 154 * 2^-24 * ln 2 of the result.
      EXPECT_NEAR(got[i], want, std::max(1.3e-5 * want, 0x1p-126)) << kernels << " " << i;
      if (std::string(kernels) == "cuda" && std::exp(double(logits[i])) < 0x1p-127) {
        EXPECT_EQ(got[i], 0.0f) << i;
      }
    }
  }
}

TEST(CrossEntropy, UnalignedRowsHaveTheBitsOfAlignedOnes) {
  for (DType t : {DType::f32, DType::bf16}) {
    for (int64_t vocab : {8, 256, 4096, 60000}) {
      Lab lab;
      const Tensor want = lab.ints({2}, targets(2, vocab)), losses = lab.empty({2}), shifted = lab.empty({2});
      const Tensor logits = lab.random({2, vocab}, 1, t, 4), other = lab.shifted(logits);
      ops::cross_entropy_forward_backward(lab.s, losses, logits, logits, want, 0.25f);
      ops::cross_entropy_forward_backward(lab.s, shifted, other, other, want, 0.25f);
      EXPECT_EQ(bits(lab.floats(shifted)), bits(lab.floats(losses))) << vocab;
      EXPECT_EQ(bits(lab.floats(other)), bits(lab.floats(logits))) << vocab;
    }
  }
}

// Columns of a matrix whose rows have room behind (or before) them, as a head's logits do.
TEST(CrossEntropy, ColumnsHaveTheBitsOfAMatrixAndTheirNeighboursStay) {
  for (const char* kernels : {kFast, "reference"})
    for (DType t : {DType::f32, DType::bf16})
      for (int64_t vocab : {5, 37, 257, 5001, 50257})
        for (int64_t begin : {0, 8, 3}) {
          if (vocab == 50257 && (begin == 3 || kernels != std::string(kFast))) continue;  // slow
          Lab lab(kernels);
          const int64_t rows = 3, ld = (begin + vocab + 63) / 64 * 64;
          const Tensor want = lab.ints({rows}, targets(rows, vocab)), losses = lab.empty({rows}),
                       of_columns = lab.empty({rows}), logits = lab.random({rows, vocab}, 1, t, 4),
                       all = lab.tensor({rows, ld}, Floats(static_cast<size_t>(rows * ld), NAN), t);
          const ops::Columns columns(all, begin, vocab);
          ops::strided_copy(lab.s, all.flat(begin, rows * ld), ld, logits, vocab, rows, vocab);
          ops::cross_entropy_forward_backward(lab.s, losses, logits, logits, want, 0.25f);
          ops::cross_entropy_forward_backward(lab.s, of_columns, columns, columns, want, 0.25f);
          EXPECT_EQ(bits(lab.floats(of_columns)), bits(lab.floats(losses))) << kernels << vocab;
          const Floats got = lab.floats(all), d = lab.floats(logits);
          for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < ld; ++j) {
              const float found = got[static_cast<size_t>(i * ld + j)];
              if (j < begin || j >= begin + vocab) {
                ASSERT_TRUE(std::isnan(found)) << kernels << vocab << ": " << i << " " << j;
              } else {
                ASSERT_EQ(found, d[static_cast<size_t>(i * vocab + j - begin)])
                    << kernels << vocab << ": " << i << " " << j;
              }
            }
        }
}

TEST(CrossEntropy, MinusInfinityIsProbabilityZeroAndNanStaysInItsRow) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const char* kernels : {kFast, "reference"}) {
    for (int64_t vocab : {5, 3000}) {
      Lab lab(kernels);
      const size_t n = static_cast<size_t>(vocab);
      Floats values(3 * n, -inf);
      values[1] = values[n - 1] = 2;  // all that is possible in row 0
      values[n] = nan;
      values[2 * n + 2] = 7;
      const Tensor logits = lab.tensor({3, vocab}, values), losses = lab.empty({3});
      ops::cross_entropy_forward_backward(lab.s, losses, logits, logits, lab.ints({3}, {1, 0, 2}), 1);
      const Floats got = lab.floats(losses), d = lab.floats(logits);
      EXPECT_NEAR(got[0], std::log(2.0f), 1e-6) << kernels;
      EXPECT_TRUE(std::isnan(got[1])) << kernels;
      EXPECT_EQ(got[2], 0.0f) << kernels;
      EXPECT_NEAR(d[1], -0.5f, 1e-6) << kernels;
      EXPECT_NEAR(d[n - 1], 0.5f, 1e-6) << kernels;
      EXPECT_EQ(d[2], 0.0f) << kernels;
      EXPECT_TRUE(std::isnan(d[n])) << kernels;
      EXPECT_EQ(Floats(d.begin() + 2 * vocab, d.end()), Floats(n, 0.0f)) << kernels;
    }
  }
}

TEST(CrossEntropy, BothAtOnceGiveTheBitsOfEach) {
  for (const char* kernels : {kFast, "reference"}) {
    for (DType t : {DType::f32, DType::bf16}) {
      for (auto [rows, vocab] : std::initializer_list<std::array<int64_t, 2>>{
               {0, 5}, {1, 1}, {3, 7}, {17, 33}, {9, 256}, {2, 5001}, {1, 60000}}) {
        for (bool in_place : {false, true}) {
          Lab lab(kernels);
          const Tensor logits = lab.random({rows, vocab}, 1, t, 4), losses = lab.empty({rows}),
                       d = in_place ? logits : lab.empty({rows, vocab}, t);
          ops::cross_entropy_forward_backward(lab.s, losses, d, logits,
                                              lab.ints({rows}, targets(rows, vocab)), 0.25f);
          EXPECT_EQ(bits(lab.floats(losses)), bits(forward(lab, rows, vocab, t, 4))) << kernels << vocab;
          EXPECT_EQ(bits(lab.floats(d)), bits(backward(lab, rows, vocab, t, 4, false))) << kernels << vocab;
        }
      }
    }
  }
}

TEST(CrossEntropy, ReferenceBackwardIsTheGradient) {
  const int64_t rows = 4, vocab = 6;
  std::vector<double> logits = doubles(rows * vocab, 1), d(logits.size());
  const std::vector<int32_t> t = targets(rows, vocab);
  CrossEntropyArgs a{.rows = rows,
                     .vocab = vocab,
                     .ld = vocab,
                     .logits = ref(logits),
                     .dlogits = ref(d),
                     .targets = t.data()};
  a.scale = 1;
  LossKernels::reference()->cross_entropy_backward(no_context(), a);
  std::vector<double> losses(rows);
  a.losses = ref(losses);
  auto loss = [&] {
    LossKernels::reference()->cross_entropy_forward(no_context(), a);
    return std::accumulate(losses.begin(), losses.end(), 0.0);
  };
  expect_gradient(logits, d, loss, 1e-7);
}

}  // namespace
}  // namespace sherd::test
