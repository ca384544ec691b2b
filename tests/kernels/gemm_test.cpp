#include <limits>

#include "lab.h"

namespace sherd::test {
namespace {

struct GemmCase {
  int64_t m, n, k;
  DType in = DType::f32, out = DType::f32;
  float alpha = 1, beta = 0;
};

Floats multiply(Lab& lab, const GemmCase& c, bool trans_a, bool trans_b) {
  Tensor a = lab.random(trans_a ? Shape{c.k, c.m} : Shape{c.m, c.k}, 1, c.in);
  Tensor b = lab.random(trans_b ? Shape{c.n, c.k} : Shape{c.k, c.n}, 2, c.in);
  Tensor out = lab.random({c.m, c.n}, 3, c.out);
  ops::gemm(lab.s, out, a, trans_a, b, trans_b, c.alpha, c.beta);
  return lab.floats(out);
}

void check_all_transposes(const GemmCase& c) {
  for (bool ta : {false, true}) {
    for (bool tb : {false, true}) {
      // fp32 sums of k terms near 1, then one rounding to the output type.
      const double tolerance = 4 * epsilon(DType::f32) * std::sqrt(double(c.k) + 1) + epsilon(c.out);
      expect_same_as_reference([&](Lab& lab) { return multiply(lab, c, ta, tb); }, 4 * tolerance,
                               "m " + std::to_string(c.m) + " n " + std::to_string(c.n) + " k " +
                                   std::to_string(c.k) + (ta ? " T" : " N") + (tb ? "T" : "N"));
    }
  }
}

TEST(Gemm, KnownProduct) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    Tensor a = lab.tensor({2, 3}, {1, 2, 3, 4, 5, 6}), b = lab.tensor({3, 2}, {7, 8, 9, 10, 11, 12});
    Tensor c = lab.tensor({2, 2}, {1, 1, 1, 1});
    ops::gemm(lab.s, c, a, false, b, false);
    EXPECT_EQ(lab.floats(c), (Floats{58, 64, 139, 154}));
    ops::gemm(lab.s, c, a, false, b, false, 2, -1);
    EXPECT_EQ(lab.floats(c), (Floats{58, 64, 139, 154}));
    Tensor d = lab.empty({3, 3});
    ops::gemm(lab.s, d, a, true, b, true);  // [3,2] [2,3]
    EXPECT_EQ(lab.floats(d), (Floats{39, 49, 59, 54, 68, 82, 69, 87, 105}));
  }
}

TEST(Gemm, OddSizesAllTransposes) {
  for (auto [m, n, k] : std::initializer_list<std::array<int64_t, 3>>{
           {1, 1, 1}, {1, 17, 5}, {13, 1, 9}, {7, 11, 3}, {16, 32, 8}, {33, 65, 31}, {100, 48, 70}})
    check_all_transposes({m, n, k});
}

TEST(Gemm, AlphaAndBeta) {
  for (DType out : {DType::f32, DType::bf16})
    for (float alpha : {0.0f, 0.5f, -2.0f})
      for (float beta : {0.0f, 1.0f, 0.25f}) check_all_transposes({9, 14, 21, out, out, alpha, beta});
}

TEST(Gemm, Bf16IntoBf16AndF32) {
  for (DType out : {DType::f32, DType::bf16})
    for (auto [m, n, k] : std::initializer_list<std::array<int64_t, 3>>{{1, 1, 1}, {5, 7, 13}, {64, 40, 33}})
      check_all_transposes({m, n, k, DType::bf16, out});
}

TEST(Gemm, EmptySizes) {
  for (DType t : {DType::f32, DType::bf16}) {
    check_all_transposes({0, 4, 3, t, t});
    check_all_transposes({4, 0, 3, t, t});
    check_all_transposes({4, 5, 0, t, t});           // zeros
    check_all_transposes({4, 5, 0, t, t, 1, 0.5f});  // beta * C
    check_all_transposes({0, 0, 0, t, t});
  }
}

TEST(Gemm, BetaZeroDoesNotReadCAndGivesWhatBetaOneAddsToZeros) {
  using Sizes = std::array<int64_t, 3>;
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  for (const char* kernels : {kFast, "reference"}) {
    for (auto [in, out] : std::initializer_list<std::pair<DType, DType>>{
             {DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}}) {
      for (auto [m, n, k] : std::initializer_list<Sizes>{{3, 5, 0},
                                                         {3, 5, 3},
                                                         {1, 1, 1},
                                                         {1, 40, 24},
                                                         {40, 1, 24},
                                                         {24, 33, 1},
                                                         {48, 40, 300},
                                                         {130, 70, 64}}) {
        for (const bool trans_a : {false, true}) {
          for (const bool trans_b : {false, true}) {
            Lab lab(kernels, 2);
            const Tensor a = lab.random(trans_a ? Shape{k, m} : Shape{m, k}, 1, in);
            const Tensor b = lab.random(trans_b ? Shape{n, k} : Shape{k, n}, 2, in);
            const Tensor c = lab.full({m, n}, nan, out), zeros = lab.full({m, n}, 0, out);
            ops::gemm(lab.s, c, a, trans_a, b, trans_b, 0.5f, 0);
            ops::gemm(lab.s, zeros, a, trans_a, b, trans_b, 0.5f, 1);
            EXPECT_EQ(lab.floats(c), lab.floats(zeros)) << kernels << " " << m << " " << n << " " << k;
          }
        }
      }
    }
  }
}

TEST(Gemm, LeadingDimensionsSelectABlock) {
  for (const char* kernels : {kFast, "reference"}) {
    for (DType t : {DType::f32, DType::bf16}) {
      Lab lab(kernels);
      Tensor a = lab.random({4, 10}, 1, t), b = lab.random({6, 9}, 2, t), c = lab.full({4, 8}, 7, t);
      Tensor dense_a = lab.empty({4, 6}, t), dense_b = lab.empty({6, 3}, t), want = lab.empty({4, 3}, t);
      GemmArgs g{.m = 4, .n = 3, .k = 6, .lda = 10, .ldb = 9, .ldc = 8};
      g.a = {a.raw(), t}, g.b = {b.raw(), t}, g.c = {c.raw(), t};
      lab.s.submit("gemm",
                   [f = lab.device->kernels<GemmKernels>().gemm, g](ExecutionContext& x) { f(x, g); });
      for (int64_t i = 0; i < 6; ++i) {
        if (i < 4) ops::copy(lab.s, dense_a.rows(i, i + 1).flat(), a.flat(i * 10, i * 10 + 6));
        ops::copy(lab.s, dense_b.rows(i, i + 1).flat(), b.flat(i * 9, i * 9 + 3));
      }
      ops::gemm(lab.s, want, dense_a, false, dense_b, false);
      const Floats got = lab.floats(c), expected = lab.floats(want);
      for (size_t i = 0; i < 4; ++i)
        for (size_t j = 0; j < 8; ++j)
          EXPECT_EQ(got[i * 8 + j], j < 3 ? expected[i * 3 + j] : 7) << i << " " << j;
    }
  }
}

TEST(Gemm, ColumnsAreBlocksOfLargerMatrices) {
  for (const char* kernels : {kFast, "reference"}) {
    for (DType t : {DType::f32, DType::bf16}) {
      Lab lab(kernels);
      const Tensor a = lab.random({4, 10}, 1, t), b = lab.random({6, 9}, 2, t), c = lab.full({4, 8}, 7, t);
      const Tensor dense_a = lab.empty({4, 6}, t), dense_b = lab.empty({6, 3}, t),
                   want = lab.empty({4, 3}, t);
      ops::gemm_columns(lab.s, {c, 2, 3}, {a, 1, 6}, false, {b, 5, 3}, false);
      ops::strided_copy(lab.s, dense_a, 6, a.flat(1, 40), 10, 4, 6);
      ops::strided_copy(lab.s, dense_b, 3, b.flat(5, 54), 9, 6, 3);
      ops::gemm(lab.s, want, dense_a, false, dense_b, false);
      const Floats got = lab.floats(c), expected = lab.floats(want);
      for (size_t i = 0; i < 4; ++i)
        for (size_t j = 0; j < 8; ++j)
          EXPECT_EQ(got[i * 8 + j], j >= 2 && j < 5 ? expected[i * 3 + j - 2] : 7) << i << " " << j;
      const Tensor gram = lab.full({6, 3}, 1), dense_gram = lab.full({6, 3}, 1);
      ops::gemm_columns(lab.s, gram, {a, 1, 6}, true, {c, 2, 3}, false, 1);
      ops::gemm(lab.s, dense_gram, dense_a, true, want, false, 1, 1);
      EXPECT_EQ(lab.floats(gram), lab.floats(dense_gram));
      EXPECT_THROW(ops::gemm_columns(lab.s, {c, 6, 3}, {a, 1, 6}, false, {b, 5, 3}, false), InvalidArgument);
      EXPECT_THROW(ops::gemm_columns(lab.s, {c, 2, 3}, {a, 1, 5}, false, {b, 5, 3}, false), ShapeMismatch);
    }
  }
}

TEST(Gemm, RepeatsToTheBit) {
  Lab lab(kFast, 2);
  const GemmCase c{129, 77, 65};
  const auto first = bits(multiply(lab, c, false, true));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(bits(multiply(lab, c, false, true)), first);
}

}  // namespace
}  // namespace sherd::test
