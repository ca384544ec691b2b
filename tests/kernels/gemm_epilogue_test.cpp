// Products with something after them: on the CPU the bits of gemm, add_bias, gelu_forward, add and gelu_backward
// one after another; on a GPU, where cuBLASLt does it before its one rounding, the same to a rounding of the
// output type.
#include <gmock/gmock.h>

#include "lab.h"

namespace sherd::test {
namespace {

struct Case {
  int64_t m, n, k;
  DType type = DType::f32;
  bool bias = true, pre = true;
};

struct Result {
  Floats c, pre;
};

Result fused(Lab& lab, const Case& c, bool trans_a, bool trans_b) {
  const Tensor a = lab.random(trans_a ? Shape{c.k, c.m} : Shape{c.m, c.k}, 1, c.type);
  const Tensor b = lab.random(trans_b ? Shape{c.n, c.k} : Shape{c.k, c.n}, 2, c.type);
  const Tensor bias = c.bias ? lab.random({c.n}, 3, c.type) : Tensor();
  const Tensor out = lab.full({c.m, c.n}, NAN, c.type);
  const Tensor pre = c.pre ? lab.full({c.m, c.n}, NAN, c.type) : Tensor();
  ops::gemm_gelu(lab.s, out, pre, a, trans_a, b, trans_b, bias);
  return {lab.floats(out), c.pre ? lab.floats(pre) : Floats{}};
}

Result one_by_one(Lab& lab, const Case& c, bool trans_a, bool trans_b) {
  const Tensor a = lab.random(trans_a ? Shape{c.k, c.m} : Shape{c.m, c.k}, 1, c.type);
  const Tensor b = lab.random(trans_b ? Shape{c.n, c.k} : Shape{c.k, c.n}, 2, c.type);
  const Tensor out = lab.empty({c.m, c.n}, c.type), pre = lab.empty({c.m, c.n}, c.type);
  ops::gemm(lab.s, pre, a, trans_a, b, trans_b);
  if (c.bias) ops::add_bias(lab.s, pre, lab.random({c.n}, 3, c.type));
  ops::gelu_forward(lab.s, out, pre);
  return {lab.floats(out), c.pre ? lab.floats(pre) : Floats{}};
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (DType t : {DType::f32, DType::bf16})
    for (bool bias : {false, true})
      for (bool pre : {false, true})
        // Rows of 8 elements, which cuBLASLt fuses, and others; nothing to sum; nothing at all.
        for (auto [m, n, k] : std::initializer_list<std::array<int64_t, 3>>{
                 {1, 1, 1}, {5, 7, 13}, {16, 24, 33}, {40, 64, 17}, {3, 8, 0}, {0, 8, 3}, {3, 0, 3}})
          all.push_back({m, n, k, t, bias, pre});
  return all;
}

std::string print(const Case& c) {
  return std::to_string(c.m) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k) + " " + name_of(c.type) +
         (c.bias ? " bias" : "") + (c.pre ? " pre" : "");
}

TEST(GemmEpilogue, IsGemmBiasAndGelu) {
  for (const std::string kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    for (const Case& c : cases())
      for (bool ta : {false, true}) {
        const Result got = fused(lab, c, ta, !ta), want = one_by_one(lab, c, ta, !ta);
        if (kernels == "cuda" && c.type == DType::bf16) {
          // Up to three roundings at the size of the terms, sqrt(k), where the fused kernel has one.
          const double tolerance = 3 * epsilon(DType::bf16) * std::sqrt(double(c.k) + 2);
          expect_close(got.c, want.c, tolerance, print(c));
          expect_close(got.pre, want.pre, tolerance, print(c));
        } else {
          EXPECT_EQ(bits(got.c), bits(want.c)) << kernels << " " << print(c);
          EXPECT_EQ(bits(got.pre), bits(want.pre)) << kernels << " " << print(c);
        }
      }
  }
}

/// The residual sum or GELU's backward of a product, in one call or in two.
Floats after_product(Lab& lab, const Case& c, bool trans_a, bool trans_b, bool residual, bool one_call) {
  const Tensor a = lab.random(trans_a ? Shape{c.k, c.m} : Shape{c.m, c.k}, 1, c.type);
  const Tensor b = lab.random(trans_b ? Shape{c.n, c.k} : Shape{c.k, c.n}, 2, c.type);
  const Tensor other = lab.random({c.m, c.n}, 3, c.type), out = lab.full({c.m, c.n}, NAN, c.type);
  if (one_call) {
    residual ? ops::gemm_add(lab.s, out, a, trans_a, b, trans_b, other)
             : ops::gemm_gelu_backward(lab.s, out, a, trans_a, b, trans_b, other);
  } else {
    ops::gemm(lab.s, out, a, trans_a, b, trans_b);
    residual ? ops::add(lab.s, out, other, out) : ops::gelu_backward(lab.s, out, out, other);
  }
  return lab.floats(out);
}

TEST(GemmEpilogue, IsGemmAndResidualOrGelusBackward) {
  for (const std::string kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    for (const Case& c : cases()) {
      if (!c.bias || !c.pre) continue;  // of which there is neither here
      for (bool residual : {true, false})
        for (bool ta : {false, true}) {
          const Floats got = after_product(lab, c, ta, !ta, residual, true),
                       want = after_product(lab, c, ta, !ta, residual, false);
          const std::string what = print(c) + (residual ? " residual" : " gelu backward");
          if (kernels == "cuda" && c.type == DType::bf16) {
            // The product is rounded to bf16 between two calls, at the size of its terms, sqrt(k); gelu' is at
            // most 1.13.
            expect_close(got, want, 3 * epsilon(DType::bf16) * std::sqrt(double(c.k) + 2), what);
          } else {
            EXPECT_EQ(bits(got), bits(want)) << kernels << " " << what;
          }
        }
    }
  }
}

TEST(GemmEpilogue, WhatIsAddedOrReadIsNotTheResult) {
  Lab lab;
  const Tensor a = lab.random({4, 4}, 1), c = lab.random({4, 4}, 2);
  EXPECT_THROW(ops::gemm_add(lab.s, c, a, false, a, false, c), InvalidArgument);
  EXPECT_THROW(ops::gemm_gelu_backward(lab.s, c, a, false, a, false, c), InvalidArgument);
  EXPECT_THROW(ops::gemm_add(lab.s, c, a, false, a, false, lab.random({4, 5}, 2)), ShapeMismatch);
  EXPECT_THROW(ops::gemm_gelu_backward(lab.s, c, a, false, a, false, lab.random({4, 4}, 2, DType::bf16)),
               ShapeMismatch);
}

TEST(GemmEpilogue, BiasAlone) {
  for (DType t : {DType::f32, DType::bf16}) {
    const double tolerance = t == DType::f32 ? 1e-5 : 3 * epsilon(t) * 5;
    for (int64_t n : {9, 16})
      expect_same_as_reference(
          [&](Lab& lab) {
            const Tensor c = lab.full({6, n}, NAN, t), a = lab.random({6, 20}, 1, t);
            ops::gemm_bias(lab.s, c, a, false, lab.random({n, 20}, 2, t), true, lab.random({n}, 3, t));
            return lab.floats(c);
          },
          tolerance);
  }
}

TEST(GemmEpilogue, ViewsThatBeginAnywhere) {
  for (DType t : {DType::f32, DType::bf16})
    for (int64_t shift : {1, 4}) {
      Lab lab;
      const Tensor space = lab.full({200}, NAN, t), bias = lab.random({8 + shift}, 3, t);
      const Tensor a = lab.random({5, 12}, 1, t), b = lab.random({12, 8}, 2, t);
      const Tensor out = space.flat(shift, shift + 40).view({5, 8}), pre = space.flat(100, 140).view({5, 8});
      const Tensor shifted = bias.flat(shift, shift + 8);
      ops::gemm_gelu(lab.s, out, pre, a, false, b, false, shifted);
      const Tensor want_pre = lab.empty({5, 8}, t), want = lab.empty({5, 8}, t);
      ops::gemm(lab.s, want_pre, a, false, b, false);
      ops::add_bias(lab.s, want_pre, shifted);
      ops::gelu_forward(lab.s, want, want_pre);
      expect_close(lab.floats(pre), lab.floats(want_pre), 12 * epsilon(t));
      expect_close(lab.floats(out), lab.floats(want), 12 * epsilon(t));
      for (int64_t i : {shift - 1, shift + 40, int64_t{99}, int64_t{140}})
        EXPECT_TRUE(std::isnan(lab.floats(space.flat(i, i + 1))[0])) << i << " was written";
    }
}

TEST(GemmEpilogue, Rejects) {
  Lab lab;
  const Tensor a = lab.empty({4, 3}), b = lab.empty({3, 8}), c = lab.empty({4, 8}), pre = lab.empty({4, 8});
  EXPECT_THROW(ops::gemm_gelu(lab.s, c, lab.empty({8, 4}), a, false, b, false), ShapeMismatch);
  EXPECT_THROW(ops::gemm_gelu(lab.s, c, lab.empty({4, 8}, DType::bf16), a, false, b, false), ShapeMismatch);
  EXPECT_THROW(ops::gemm_gelu(lab.s, c, pre, a, false, b, false, lab.empty({4})), ShapeMismatch);
  EXPECT_THROW(ops::gemm_gelu(lab.s, c, pre, a, false, b, true), ShapeMismatch);
  EXPECT_THROW(ops::gemm_gelu(lab.s, c, c, a, false, b, false), InvalidArgument);
  EXPECT_THROW(ops::gemm_bias(lab.s, c, a, false, b, false, Tensor()), ShapeMismatch);
  // A result wider than its factors is gemm's alone.
  EXPECT_THROW(ops::gemm_bias(lab.s, c, lab.empty({4, 3}, DType::bf16), false, lab.empty({3, 8}, DType::bf16),
                              false, lab.empty({8}, DType::bf16)),
               ShapeMismatch);
  EXPECT_THROW(ops::gemm_gelu(lab.s, Tensor(), pre, a, false, b, false), ShapeMismatch);
}

}  // namespace
}  // namespace sherd::test
