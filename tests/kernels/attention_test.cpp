#include <limits>
#include "lab.h"

namespace sherd::test {
namespace {

struct Case {
  int64_t batch, seq, heads, dim;
  DType dtype = DType::f32;
  float spread = 1;  // of qkv
};

std::string name(const Case& c) {
  return "batch " + std::to_string(c.batch) + " seq " + std::to_string(c.seq) + " heads " +
         std::to_string(c.heads) + " dim " + std::to_string(c.dim) + " " + name_of(c.dtype);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (DType t : {DType::f32, DType::bf16}) {
    for (auto [b, s, h, d] : std::initializer_list<std::array<int64_t, 4>>{{1, 1, 1, 1},
                                                                           {1, 2, 1, 3},
                                                                           {2, 7, 3, 5},
                                                                           {1, 63, 2, 8},
                                                                           {1, 64, 1, 16},
                                                                           {2, 65, 2, 12},
                                                                           {1, 150, 2, 48},
                                                                           {1, 200, 1, 64},
                                                                           {2, 130, 1, 80},
                                                                           {1, 161, 1, 128},
                                                                           {1, 129, 1, 20},
                                                                           {1, 100, 1, 136},
                                                                           {1, 33, 1, 256},
                                                                           {kEmulated ? 50 : 70000, 1, 1, 4}})
      all.push_back({b, s, h, d, t});
    if (!kEmulated && kCuda) all.insert(all.end(), {{3, 700, 5, 64, t}, {1, 530, 2, 128, t}});
  }
  all.push_back({1, 0, 2, 4});
  all.push_back({1, 70, 1, 8, DType::f32, 30});  // scores in the hundreds: softmax saturates
  all.push_back({1, 140, 1, 32, DType::bf16, 10});
  return all;
}

// A rounding to bf16 changes a value by a factor within 1 +- u, u = epsilon / 2; as a random number its
// standard deviation is u / sqrt(3). On CUDA probabilities p and ds = p (dp - delta) are rounded once before
// they are summed, beside the rounding of the result, u |result|, that all kernels have.
//   forward: |error| <= u sum_j p_j |v_j| <= u max |v|, and max |v| <= 4.5 in these samples.
//   backward: sums of n terms have a deviation of u / sqrt(3) * sqrt(sum of their squares). The squares of a
//   row or column of p add up to at most 2 (a column: 1 + 1/4 + 1/9 + ... where keys are alike); times the
//   squares of dout (1) in dv, of (dp - delta) scale (2: a dot product of head_dim terms, less its mean) and
//   of k or q (1) in dq and dk: at most u / sqrt(3) * 2, six of which are 7 u.
double bf16_forward(float spread) { return (kCuda ? 4.5 / 2 : 1) * epsilon(DType::bf16) * spread; }
double bf16_backward(float spread) { return (kCuda ? 7.0 / 2 : 1) * epsilon(DType::bf16) * spread * spread; }

TEST(Attention, FirstRowCopiesItsValueAndEqualKeysAverage) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    // Two positions, one head of width 2; both keys are zero, so row 1 averages the values.
    Tensor qkv = lab.tensor({2, 6}, {1, 2, 0, 0, 10, 20, 3, 4, 0, 0, 30, 60});
    Tensor out = lab.empty({2, 2}), lse = lab.empty({1, 1, 2});
    ops::attention_forward(lab.s, out, lse, qkv, 1, 1);
    expect_close(lab.floats(out), {10, 20, 20, 40}, 1e-6);
    expect_close(lab.floats(lse), {0, std::log(2.0f)}, 1e-6);
  }
}

TEST(Attention, ForwardMatchesReference) {
  for (const Case& c : cases()) {
    expect_same_as_reference(
        [&](Lab& lab) {
          Tensor qkv = lab.random({c.batch * c.seq, 3 * c.heads * c.dim}, 1, c.dtype, c.spread);
          Tensor out = lab.empty({c.batch * c.seq, c.heads * c.dim}, c.dtype),
                 lse = lab.empty({c.batch, c.heads, c.seq});
          ops::attention_forward(lab.s, out, lse, qkv, c.batch, c.heads);
          Floats result = lab.floats(out), sums = lab.floats(lse);
          result.insert(result.end(), sums.begin(), sums.end());
          return result;
        },
        c.dtype == DType::f32 ? 1e-5 * c.spread : bf16_forward(c.spread), name(c));
  }
}

TEST(Attention, BackwardMatchesReference) {
  for (const Case& c : cases()) {
    // The same forward results for both, so that only backward is compared.
    Lab lab("reference");
    Tensor out = lab.empty({c.batch * c.seq, c.heads * c.dim}, c.dtype),
           lse = lab.empty({c.batch, c.heads, c.seq});
    ops::attention_forward(lab.s, out, lse,
                           lab.random({c.batch * c.seq, 3 * c.heads * c.dim}, 1, c.dtype, c.spread), c.batch,
                           c.heads);
    const Floats out_values = lab.floats(out), lse_values = lab.floats(lse);
    expect_same_as_reference(
        [&](Lab& x) {
          Tensor qkv = x.random({c.batch * c.seq, 3 * c.heads * c.dim}, 1, c.dtype, c.spread);
          Tensor dqkv = x.empty(qkv.shape(), c.dtype);
          ops::attention_backward(x.s, dqkv, x.random(out.shape(), 2, c.dtype),
                                  x.tensor(out.shape(), out_values, c.dtype),
                                  x.tensor(lse.shape(), lse_values), qkv, c.batch, c.heads);
          return x.floats(dqkv);
        },
        c.dtype == DType::f32 ? 2e-5 * c.spread * c.spread : bf16_backward(c.spread), name(c));
  }
}

TEST(Attention, ReferenceBackwardIsTheGradient) {
  const int64_t batch = 2, seq = 4, heads = 2, dim = 3;
  std::vector<double> qkv = doubles(batch * seq * 3 * heads * dim, 1),
                      dout = doubles(batch * seq * heads * dim, 2);
  std::vector<double> out(dout.size()), dqkv(qkv.size());
  std::vector<float> lse(static_cast<size_t>(batch * heads * seq));
  AttentionArgs a{
      .batch = batch, .seq = seq, .heads = heads, .head_dim = dim, .qkv = ref(qkv), .out = ref(out)};
  a.lse = lse.data();
  a.dout = ref(dout);
  a.dqkv = ref(dqkv);
  auto loss = [&] {
    reference_kernels().attention_forward(no_context(), a);
    return dot(out, dout);
  };
  loss();
  reference_kernels().attention_backward(no_context(), a);
  expect_gradient(qkv, dqkv, loss, 3e-6);  // lse is kept in fp32
}

struct Results {
  Floats out, lse, dqkv;
};

/// A forward and a backward pass; all tensors begin `shift` elements into their memory.
Results both_passes(Lab& lab, const Case& c, const Floats& qkv_values, const Floats& dout_values,
                    int64_t shift = 0) {
  auto empty = [&](Shape shape, DType type) {
    const int64_t n = numel_of(shape);
    return lab.empty({n + shift}, type).flat(shift, n + shift).view(std::move(shape));
  };
  auto filled = [&](Shape shape, const Floats& values) {
    Tensor t = empty(shape, c.dtype), f = lab.tensor(shape, values);
    ops::cast(lab.s, t, f);
    lab.s.synchronize();
    return t;
  };
  const Shape wide{c.batch * c.seq, 3 * c.heads * c.dim}, narrow{c.batch * c.seq, c.heads * c.dim};
  Tensor qkv = filled(wide, qkv_values), dout = filled(narrow, dout_values);
  Tensor out = empty(narrow, c.dtype), lse = empty({c.batch, c.heads, c.seq}, DType::f32),
         dqkv = empty(wide, c.dtype);
  ops::attention_forward(lab.s, out, lse, qkv, c.batch, c.heads);
  ops::attention_backward(lab.s, dqkv, dout, out, lse, qkv, c.batch, c.heads);
  return {lab.floats(out), lab.floats(lse), lab.floats(dqkv)};
}

Floats part(const Floats& v, int64_t begin, int64_t count) {
  return {v.begin() + begin, v.begin() + begin + count};
}

TEST(Attention, SameBitsWhateverElseIsInTheBatch) {
  for (DType t : {DType::f32, DType::bf16}) {
    Lab lab;
    const Case one{1, 150, 2, 24, t}, three{3, 150, 2, 24, t};
    const int64_t n = one.seq * one.heads * one.dim;
    const Floats qkv = normal(3 * 3 * n, 1), dout = normal(3 * n, 2);
    const Results all = both_passes(lab, three, qkv, dout);
    const Results last = both_passes(lab, one, part(qkv, 2 * 3 * n, 3 * n), part(dout, 2 * n, n));
    EXPECT_EQ(bits(part(all.out, 2 * n, n)), bits(last.out)) << name(one);
    EXPECT_EQ(bits(part(all.dqkv, 2 * 3 * n, 3 * n)), bits(last.dqkv)) << name(one);
  }
}

TEST(Attention, SameBitsWhereverTensorsBegin) {
  for (const Case& c : std::vector<Case>{
           {2, 140, 2, 8, DType::bf16}, {1, 70, 2, 40, DType::f32}, {1, 40, 1, 136, DType::bf16}}) {
    Lab lab;
    const int64_t n = c.batch * c.seq * c.heads * c.dim;
    const Floats qkv = normal(3 * n, 1), dout = normal(n, 2);
    const Results aligned = both_passes(lab, c, qkv, dout), shifted = both_passes(lab, c, qkv, dout, 3);
    EXPECT_EQ(bits(aligned.out), bits(shifted.out)) << name(c);
    EXPECT_EQ(bits(aligned.lse), bits(shifted.lse)) << name(c);
    EXPECT_EQ(bits(aligned.dqkv), bits(shifted.dqkv)) << name(c);
  }
}

TEST(Attention, HugeNegativeScoresOfEqualKeysStillAverage) {
  for (DType t : {DType::f32, DType::bf16}) {
    Lab lab;
    // One head of width 1: every score is -2^20, and the values are 0, 1, 2, ...
    const int64_t seq = 70;
    Floats qkv;
    for (int64_t i = 0; i < seq; ++i) qkv.insert(qkv.end(), {0x1p10f, -0x1p10f, static_cast<float>(i)});
    const Results r = both_passes(lab, {1, seq, 1, 1, t}, qkv, Floats(static_cast<size_t>(seq), 0));
    Floats want;
    for (int64_t i = 0; i < seq; ++i) want.push_back(static_cast<float>(i) / 2);
    expect_close(r.out, want, t == DType::f32 ? 1e-6 : epsilon(t), name_of(t));
  }
}

// The CPU's kernels multiply whole blocks, masked zeros included: there NaN reaches the rows of its block.
TEST(Attention, WhatIsNotFiniteReachesOnlyRowsThatSeeIt) {
  const int64_t seq = 150, where = 71;
  for (const Case& c : std::vector<Case>{
           {1, seq, 1, 16, DType::f32}, {1, seq, 1, 16, DType::bf16}, {1, seq, 1, 72, DType::bf16}}) {
    Lab lab(kCuda ? "cuda" : "reference");
    const Floats qkv = normal(seq * 3 * c.dim, 1), dout = normal(seq * c.dim, 2);
    const Results clean = both_passes(lab, c, qkv, dout);
    for (float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      // In q, k, v or dout. An infinite q or k may make scores of -inf, which do no harm.
      for (int64_t hit = std::isnan(bad) ? 0 : 2; hit < 4; ++hit) {
        Floats x = qkv, dy = dout;
        if (hit < 3)
          x[static_cast<size_t>((where * 3 + hit) * c.dim + 5)] = bad;
        else
          dy[static_cast<size_t>(where * c.dim + 5)] = bad;
        const Results r = both_passes(lab, c, x, dy);
        for (int64_t row = 0; row < seq; ++row) {
          const std::string what = name(c) + " hit " + std::to_string(hit) + " row " + std::to_string(row);
          auto same = [&](const Floats& a, const Floats& b, int64_t begin) {
            return bits(part(a, begin, c.dim)) == bits(part(b, begin, c.dim));
          };
          auto poisoned = [&](const Floats& v, int64_t begin) {
            return !std::isfinite(v[static_cast<size_t>(begin + 5)]);
          };
          // Rows of out that see it, and of dq, whose lse or delta does; keys see later queries alone.
          const bool in_out = hit == 0 ? row == where : hit < 3 && row >= where;
          EXPECT_EQ(same(r.out, clean.out, row * c.dim), !in_out) << what;
          const bool in_dq = hit == 3 ? row == where : in_out;
          EXPECT_EQ(poisoned(r.dqkv, row * 3 * c.dim), in_dq) << what;
          const bool in_dk = hit == 1 || hit == 2 || row <= where;
          EXPECT_EQ(poisoned(r.dqkv, (row * 3 + 1) * c.dim), in_dk) << what;
          if (!in_dq) {
            EXPECT_TRUE(same(r.dqkv, clean.dqkv, row * 3 * c.dim)) << what;
          }
          if (!in_dk) {
            EXPECT_TRUE(same(r.dqkv, clean.dqkv, (row * 3 + 1) * c.dim)) << what;
            EXPECT_TRUE(same(r.dqkv, clean.dqkv, (row * 3 + 2) * c.dim)) << what;
          }
        }
      }
    }
  }
}

TEST(Attention, IsCausal) {
  Lab lab;
  const int64_t seq = 130, cut = 70;
  for (DType t : {DType::f32, DType::bf16}) {
    Floats values = normal(seq * 3 * 8, 1);
    auto outputs = [&] {
      Tensor out = lab.empty({seq, 8}, t), lse = lab.empty({1, 2, seq});
      ops::attention_forward(lab.s, out, lse, lab.tensor({seq, 24}, values, t), 1, 2);
      Floats o = lab.floats(out);
      o.resize(cut * 8);
      return bits(o);
    };
    const auto before = outputs();
    for (size_t i = cut * 24; i < values.size(); ++i) values[i] += 5;
    EXPECT_EQ(outputs(), before) << name_of(t);
  }
}

}  // namespace
}  // namespace sherd::test
