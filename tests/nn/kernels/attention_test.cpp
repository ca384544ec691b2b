#include <sherd/nn/ops.h>

#include <array>
#include <limits>

#include <sherd/kernels/device/cpu/features.h>

#include "kernels/lab.h"

namespace sherd::test {
namespace {

struct Case {
  int64_t batch, seq, heads, dim;
  DType dtype = DType::f32;
  float spread = 1;      // of qkv
  int64_t kv_heads = 0;  // 0: as many as heads

  int64_t key_heads() const { return kv_heads == 0 ? heads : kv_heads; }
  int64_t columns() const { return (heads + 2 * key_heads()) * dim; }
  Shape wide() const { return {batch * seq, columns()}; }      // of qkv
  Shape narrow() const { return {batch * seq, heads * dim}; }  // of out
  Shape sums() const { return {batch, heads, seq}; }           // of lse
  /// Returns the growth of the error of dk and dv with the query heads that they are summed over: as a random
  /// walk.
  double growth() const { return std::sqrt(static_cast<double>(heads) / static_cast<double>(key_heads())); }
};

std::string name(const Case& c) {
  return "batch " + std::to_string(c.batch) + " seq " + std::to_string(c.seq) + " heads " +
         std::to_string(c.heads) + "/" + std::to_string(c.key_heads()) + " dim " + std::to_string(c.dim) +
         " " + name_of(c.dtype);
}

const int64_t kAttentionSizes[][4] = {{1, 1, 1, 1},    {1, 2, 1, 3},     {2, 7, 3, 5},    {1, 63, 2, 8},
                                      {1, 64, 1, 16},  {2, 65, 2, 12},   {1, 150, 2, 48}, {1, 200, 1, 64},
                                      {2, 130, 1, 80}, {1, 161, 1, 128}, {1, 129, 1, 20}, {1, 100, 1, 136},
                                      {1, 150, 2, 33}, {1, 33, 1, 256}};

const int64_t kGroupedSizes[][5] = {{1, 1, 2, 1, 1},     {2, 7, 6, 2, 5},     {1, 63, 4, 4, 8},
                                    {2, 65, 8, 4, 12},   {1, 150, 4, 1, 48},  {1, 200, 4, 2, 64},
                                    {2, 130, 4, 2, 80},  {1, 161, 3, 1, 128}, {1, 129, 6, 3, 20},
                                    {1, 100, 2, 1, 136}, {1, 70, 4, 2, 33},   {1, 33, 4, 2, 256}};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (DType t : {DType::f32, DType::bf16}) {
    for (auto [b, s, h, d] : kAttentionSizes) all.push_back({b, s, h, d, t});
    all.insert(all.end(), {{1, 40, 1, kCuda ? 248 : 264, t}, {kEmulated ? 50 : 70000, 1, 1, 4, t}});
    for (auto [b, s, h, kv, d] : kGroupedSizes) all.push_back({b, s, h, d, t, 1, kv});
    if (!kEmulated) all.push_back({1, 300, 2, 64, t});
    // All remainders of rows behind the tiles of a CPU.
    for (int64_t s = 2; s <= 34 && !kCuda && !kEmulated; ++s) all.push_back({1, s, 1, 16, t});
    if (!kEmulated && kCuda) all.insert(all.end(), {{3, 700, 5, 64, t}, {1, 530, 2, 128, t}});
  }
  all.push_back({1, 0, 2, 4});
  all.push_back({1, 70, 1, 8, DType::f32, 30});  // scores in the hundreds: softmax saturates
  all.push_back({1, 140, 1, 32, DType::bf16, 10});
  return all;
}

// A rounding to bf16 changes a value by a factor within 1 +- u, u = epsilon / 2; as a random number its
// standard deviation is u / sqrt(3). On CUDA, and on CPUs with bf16 products, probabilities p and ds = p (dp - delta)
// are rounded once before they are summed, beside the rounding of the result, u |result|, that all kernels have.
//   forward: |error| <= u sum_j p_j |v_j| <= u max |v|, and max |v| <= 4.5 in these samples.
//   backward: sums of n terms have a deviation of u / sqrt(3) * sqrt(sum of their squares). The squares of a
//   row or column of p add up to at most 2 (a column: 1 + 1/4 + 1/9 + ... where keys are alike); times the
//   squares of dout (1) in dv, of (dp - delta) scale (2: a dot product of head_dim terms, less its mean) and
//   of k or q (1) in dq and dk: at most u / sqrt(3) * 2, six of which are 7 u.
bool rounds_probabilities() { return kCuda || cpu::features().bf16_products != nullptr; }
double bf16_forward(float spread) {
  return (rounds_probabilities() ? 4.5 / 2 : 1) * epsilon(DType::bf16) * spread;
}
double bf16_backward(float spread) {
  return (rounds_probabilities() ? 7.0 / 2 : 1) * epsilon(DType::bf16) * spread * spread;
}

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
          Tensor qkv = lab.random(c.wide(), 1, c.dtype, c.spread);
          Tensor out = lab.empty(c.narrow(), c.dtype), lse = lab.empty(c.sums());
          ops::attention_forward(lab.s, out, lse, qkv, c.batch, c.heads, c.kv_heads);
          return lab.floats({out, lse});
        },
        c.dtype == DType::f32 ? 1e-5 * c.spread : bf16_forward(c.spread), name(c));
  }
}

TEST(Attention, BackwardMatchesReference) {
  for (const Case& c : cases()) {
    // The same forward results for both, so that only backward is compared.
    Lab lab("reference");
    Tensor out = lab.empty(c.narrow(), c.dtype), lse = lab.empty(c.sums());
    ops::attention_forward(lab.s, out, lse, lab.random(c.wide(), 1, c.dtype, c.spread), c.batch, c.heads,
                           c.kv_heads);
    const Floats out_values = lab.floats(out), lse_values = lab.floats(lse);
    expect_same_as_reference(
        [&](Lab& x) {
          Tensor qkv = x.random(c.wide(), 1, c.dtype, c.spread);
          Tensor dqkv = x.empty(qkv.shape(), c.dtype);
          ops::attention_backward(x.s, dqkv, x.random(out.shape(), 2, c.dtype),
                                  x.tensor(out.shape(), out_values, c.dtype),
                                  x.tensor(lse.shape(), lse_values), qkv, c.batch, c.heads, c.kv_heads);
          return x.floats(dqkv);
        },
        c.growth() * (c.dtype == DType::f32 ? 2e-5 * c.spread * c.spread : bf16_backward(c.spread)), name(c));
  }
}

TEST(Attention, ReferenceBackwardIsTheGradient) {
  for (int64_t kv_heads : {1, 2, 4}) {
    const int64_t batch = 2, seq = 4, heads = 4, dim = 3;
    std::vector<double> qkv = doubles(batch * seq * (heads + 2 * kv_heads) * dim, 1),
                        dout = doubles(batch * seq * heads * dim, 2);
    std::vector<double> out(dout.size()), dqkv(qkv.size());
    std::vector<float> lse(static_cast<size_t>(batch * heads * seq));
    AttentionArgs a{.batch = batch,
                    .seq = seq,
                    .heads = heads,
                    .kv_heads = kv_heads,
                    .head_dim = dim,
                    .qkv = ref(qkv),
                    .out = ref(out)};
    a.lse = lse.data();
    a.dout = ref(dout);
    a.dqkv = ref(dqkv);
    auto loss = [&] {
      AttentionKernels::reference()->attention_forward(no_context(), a);
      return dot(out, dout);
    };
    loss();
    AttentionKernels::reference()->attention_backward(no_context(), a);
    expect_gradient(qkv, dqkv, loss, 3e-6);  // lse is kept in fp32
  }
}

struct Results {
  Floats out, lse, dqkv, max_logits;
};

/// A forward and a backward pass; all tensors begin `shift` elements into their memory.
Results both_passes(Lab& lab, const Case& c, const Floats& qkv_values, const Floats& dout_values,
                    int64_t shift = 0, const std::vector<int32_t>& starts = {}) {
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
  Tensor qkv = filled(c.wide(), qkv_values), dout = filled(c.narrow(), dout_values);
  Tensor out = empty(c.narrow(), c.dtype), lse = empty(c.sums(), DType::f32), dqkv = empty(c.wide(), c.dtype);
  Tensor max_logits = empty({c.heads}, DType::f32);
  ops::fill(lab.s, max_logits, -1e30);
  const Tensor first = starts.empty() ? Tensor() : lab.ints({c.batch, c.seq}, starts);
  ops::attention_forward(lab.s, out, lse, qkv, c.batch, c.heads, c.kv_heads, max_logits, 0, first);
  ops::attention_backward(lab.s, dqkv, dout, out, lse, qkv, c.batch, c.heads, c.kv_heads, 0, first);
  return {lab.floats(out), lab.floats(lse), lab.floats(dqkv), lab.floats(max_logits)};
}

Floats part(const Floats& v, int64_t begin, int64_t count) {
  return {v.begin() + begin, v.begin() + begin + count};
}

TEST(Attention, SameBitsWhateverElseIsInTheBatch) {
  for (DType t : {DType::f32, DType::bf16})
    for (int64_t kv_heads : {2, 1}) {
      Lab lab;
      const Case one{1, 150, 2, 24, t, 1, kv_heads}, three{3, 150, 2, 24, t, 1, kv_heads};
      const int64_t wide = numel_of(one.wide()), narrow = numel_of(one.narrow());
      const Floats qkv = normal(3 * wide, 1), dout = normal(3 * narrow, 2);
      const Results all = both_passes(lab, three, qkv, dout);
      const Results last = both_passes(lab, one, part(qkv, 2 * wide, wide), part(dout, 2 * narrow, narrow));
      EXPECT_EQ(bits(part(all.out, 2 * narrow, narrow)), bits(last.out)) << name(one);
      EXPECT_EQ(bits(part(all.dqkv, 2 * wide, wide)), bits(last.dqkv)) << name(one);
    }
}

TEST(Attention, SameBitsWhereverTensorsBegin) {
  for (const Case& c : std::vector<Case>{{2, 140, 2, 8, DType::bf16},
                                         {1, 70, 2, 40, DType::f32},
                                         {1, 40, 1, 136, DType::bf16},
                                         {2, 140, 4, 8, DType::bf16, 1, 2},
                                         {1, 70, 2, 40, DType::f32, 1, 1}}) {
    Lab lab;
    const Floats qkv = normal(numel_of(c.wide()), 1), dout = normal(numel_of(c.narrow()), 2);
    const Results aligned = both_passes(lab, c, qkv, dout), shifted = both_passes(lab, c, qkv, dout, 3);
    EXPECT_EQ(bits(aligned.out), bits(shifted.out)) << name(c);
    EXPECT_EQ(bits(aligned.lse), bits(shifted.lse)) << name(c);
    EXPECT_EQ(bits(aligned.dqkv), bits(shifted.dqkv)) << name(c);
  }
}

TEST(Attention, HugeNegativeScoresOfEqualKeysStillAverage) {
  // A factor of 1.5 makes products with the scale that are not exact.
  const std::vector<float> factors =
      kCuda ? std::vector<float>{0x1p10f} : std::vector<float>{0x1p17f, 0x1.8p16f};
  for (DType t : {DType::f32, DType::bf16}) {
    for (const float q : factors) {
      for (const int64_t dim : {1, 2}) {
        Lab lab;
        // One head: all scores of a row are equal, below -2^20, and the values are 0, 1, 2, ...
        const int64_t seq = 70;
        Floats qkv;
        for (int64_t i = 0; i < seq; ++i)
          for (const float x : {q, -q, static_cast<float>(i)})
            qkv.insert(qkv.end(), static_cast<size_t>(dim), x);
        const Results r = both_passes(lab, {1, seq, 1, dim, t}, qkv, normal(seq * dim, 1));
        for (const float d : r.dqkv)
          ASSERT_TRUE(std::isfinite(d)) << name_of(t) << " q " << q << " dim " << dim;
        Floats want;
        for (int64_t i = 0; i < seq; ++i)
          want.insert(want.end(), static_cast<size_t>(dim), static_cast<float>(i) / 2);
        expect_close(r.out, want, t == DType::f32 ? 1e-6 : epsilon(t), name_of(t));
      }
    }
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

// Lengths of documents: blocks of rows begin inside, at, and behind the beginning of one.
TEST(Attention, DocumentsInARowAreThoseOfRowsOfTheirOwn) {
  const std::vector<int64_t> lengths{1, 62, 1, 5, 128, 53, 3, 111, 136};
  const int64_t seq = 250;  // of two rows
  std::vector<int32_t> starts;
  for (const int64_t n : lengths)
    starts.insert(starts.end(), static_cast<size_t>(n), static_cast<int32_t>(std::ssize(starts) % seq));
  for (const char* kernels : {kFast, "reference"})
    for (const Case& c : std::vector<Case>{{2, seq, 2, 16, DType::f32},
                                           {2, seq, 4, 24, DType::f32, 1, 2},
                                           {2, seq, 2, 16, DType::bf16},
                                           {2, seq, 4, 32, DType::bf16, 1, 1}}) {
      Lab lab(kernels);
      const Floats qkv = normal(numel_of(c.wide()), 1), dout = normal(numel_of(c.narrow()), 2);
      const Results packed = both_passes(lab, c, qkv, dout, 0, starts);
      const int64_t wide = c.columns(), narrow = c.heads * c.dim;
      const bool f32 = c.dtype == DType::f32;
      int64_t at = 0;
      for (const int64_t n : lengths) {
        const Results alone =
            both_passes(lab, {1, n, c.heads, c.dim, c.dtype, 1, c.kv_heads}, part(qkv, at * wide, n * wide),
                        part(dout, at * narrow, n * narrow));
        expect_close(part(packed.out, at * narrow, n * narrow), alone.out, f32 ? 1e-5 : bf16_forward(1),
                     name(c));
        expect_close(part(packed.dqkv, at * wide, n * wide), alone.dqkv,
                     c.growth() * (f32 ? 2e-5 : bf16_backward(1)), name(c));
        at += n;
      }
    }
}

TEST(Attention, OneDocumentInARowHasTheBitsOfNone) {
  for (const char* kernels : {kFast, "reference"})
    for (const DType t : {DType::f32, DType::bf16}) {
      Lab lab(kernels);
      const Case c{2, 150, 2, 24, t};
      const Floats qkv = normal(numel_of(c.wide()), 1), dout = normal(numel_of(c.narrow()), 2);
      const Results with = both_passes(lab, c, qkv, dout, 0, std::vector<int32_t>(300, 0)),
                    without = both_passes(lab, c, qkv, dout);
      EXPECT_EQ(bits(with.out), bits(without.out)) << kernels;
      EXPECT_EQ(bits(with.dqkv), bits(without.dqkv)) << kernels;
      EXPECT_EQ(bits(with.max_logits), bits(without.max_logits)) << kernels;
    }
}

// Blocks of rows and of keys have parts of two documents. The CPU's kernels multiply masked zeros, as above.
TEST(Attention, WhatIsNotFiniteStaysInItsDocument) {
  const int64_t seq = 200, begin = 70, end = 150, where = 90;
  std::vector<int32_t> starts;
  for (int64_t t = 0; t < seq; ++t)
    starts.push_back(static_cast<int32_t>(t < begin ? 0 : t < end ? begin : end));
  for (const Case& c : std::vector<Case>{
           {1, seq, 1, 16, DType::f32}, {1, seq, 1, 16, DType::bf16}, {1, seq, 1, 72, DType::bf16}}) {
    Lab lab(kCuda ? "cuda" : "reference");
    const Floats qkv = normal(seq * 3 * c.dim, 1), dout = normal(seq * c.dim, 2);
    const Results clean = both_passes(lab, c, qkv, dout, 0, starts);
    for (int64_t hit = 0; hit < 3; ++hit) {
      Floats x = qkv;
      x[static_cast<size_t>((where * 3 + hit) * c.dim + 5)] = std::nanf("");
      const Results r = both_passes(lab, c, x, dout, 0, starts);
      const auto same = [&](const Floats& a, const Floats& b, int64_t row, int64_t columns) {
        return bits(part(a, row * columns, columns)) == bits(part(b, row * columns, columns));
      };
      for (int64_t row = 0; row < seq; ++row) {
        const std::string what = name(c) + " hit " + std::to_string(hit) + " row " + std::to_string(row);
        const bool sees = hit == 0 ? row == where : row >= where && row < end;
        EXPECT_EQ(same(r.out, clean.out, row, c.dim), !sees) << what;
        if (row < begin || row >= end) {
          EXPECT_TRUE(same(r.dqkv, clean.dqkv, row, 3 * c.dim)) << what;
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

/// Columns [begin, begin + count) of rows of `columns`.
Floats columns_of(const Floats& v, int64_t columns, int64_t begin, int64_t count) {
  Floats some;
  for (int64_t row = 0; row < static_cast<int64_t>(v.size()) / columns; ++row) {
    const Floats run = part(v, row * columns + begin, count);
    some.insert(some.end(), run.begin(), run.end());
  }
  return some;
}

// A query head's result does not depend on which heads share its keys: the same bits as with a key head for
// each.
TEST(Attention, GroupedQueriesAreThoseOfRepeatedKeys) {
  for (const char* kernels : {kFast, "reference"})
    for (const Case& c : cases()) {
      const int64_t products = c.batch * c.heads * c.seq * c.seq * c.dim;
      if (c.kv_heads == 0 || (products > 5'000'000 && (kEmulated || !kCuda))) continue;
      Lab lab(kernels);
      const Floats qkv = normal(numel_of(c.wide()), 1), dout = normal(numel_of(c.narrow()), 2);
      const Case repeated{c.batch, c.seq, c.heads, c.dim, c.dtype};
      const int64_t group = c.heads / c.kv_heads, rows = c.batch * c.seq;
      Floats more;
      const auto append = [&](int64_t row, int64_t head) {
        const Floats one = part(qkv, row * c.columns() + head * c.dim, c.dim);
        more.insert(more.end(), one.begin(), one.end());
      };
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t h = 0; h < c.heads; ++h) append(row, h);
        for (int64_t h = 0; h < c.heads; ++h) append(row, c.heads + h / group);
        for (int64_t h = 0; h < c.heads; ++h) append(row, c.heads + c.kv_heads + h / group);
      }
      const Results got = both_passes(lab, c, qkv, dout), want = both_passes(lab, repeated, more, dout);
      EXPECT_EQ(bits(got.out), bits(want.out)) << name(c);
      EXPECT_EQ(bits(got.lse), bits(want.lse)) << name(c);
      EXPECT_EQ(bits(got.max_logits), bits(want.max_logits)) << name(c);
      const int64_t q = c.heads * c.dim;
      EXPECT_EQ(bits(columns_of(got.dqkv, c.columns(), 0, q)), bits(columns_of(want.dqkv, 3 * q, 0, q)))
          << name(c);
      // The others are rounded once for each query head there: half an epsilon of each of the terms.
      for (int64_t key = 0; key < 2 * c.kv_heads; ++key) {
        Floats sum(static_cast<size_t>(rows * c.dim));
        float largest = 0;
        for (int64_t g = 0; g < group; ++g) {
          const Floats one = columns_of(want.dqkv, 3 * q, q + (key * group + g) * c.dim, c.dim);
          for (size_t i = 0; i < sum.size(); ++i)
            sum[i] += one[i], largest = std::max(largest, std::abs(one[i]));
        }
        const double each = c.dtype == DType::f32 ? 2e-6 : epsilon(c.dtype) / 2;
        expect_close(columns_of(got.dqkv, c.columns(), q + key * c.dim, c.dim), sum,
                     each * static_cast<double>(group + 1) * std::max(1.0f, largest), name(c));
      }
    }
}

/// Attention and its gradients by whole matrices in double, written down from the formulas.
struct Plain {
  std::vector<double> out, dqkv, max_logits;
};
Plain plain(const Case& c, const Floats& qkv, const Floats& dout) {
  Plain r{std::vector<double>(static_cast<size_t>(numel_of(c.narrow()))),
          std::vector<double>(static_cast<size_t>(numel_of(c.wide()))),
          std::vector<double>(static_cast<size_t>(c.heads), -std::numeric_limits<double>::infinity())};
  const auto n = static_cast<size_t>(c.seq);
  using Matrix = std::vector<std::vector<double>>;
  const double scale = 1 / std::sqrt(static_cast<double>(c.dim));
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t h = 0; h < c.heads; ++h) {
      const int64_t key = c.heads + h / (c.heads / c.key_heads()), value = key + c.key_heads();
      const auto at = [&](size_t row, int64_t head, int64_t d) {
        return static_cast<size_t>((b * c.seq + static_cast<int64_t>(row)) * c.columns() + head * c.dim + d);
      };
      const auto out_at = [&](size_t row, int64_t d) {
        return static_cast<size_t>((b * c.seq + static_cast<int64_t>(row)) * c.heads * c.dim + h * c.dim + d);
      };
      Matrix p(n, std::vector<double>(n)), dp = p;
      for (size_t i = 0; i < n; ++i) {
        double sum = 0, mean = 0;
        for (size_t j = 0; j <= i; ++j) {
          for (int64_t d = 0; d < c.dim; ++d) {
            p[i][j] += scale * qkv[at(i, h, d)] * qkv[at(j, key, d)];
            dp[i][j] += double{dout[out_at(i, d)]} * qkv[at(j, value, d)];
          }
          double& most = r.max_logits[static_cast<size_t>(h)];
          most = std::max(most, p[i][j]);
          sum += p[i][j] = std::exp(p[i][j]);
        }
        for (size_t j = 0; j <= i; ++j) mean += (p[i][j] /= sum) * dp[i][j];
        for (size_t j = 0; j <= i; ++j) {
          const double ds = p[i][j] * (dp[i][j] - mean) * scale;
          for (int64_t d = 0; d < c.dim; ++d) {
            r.out[out_at(i, d)] += p[i][j] * qkv[at(j, value, d)];
            r.dqkv[at(i, h, d)] += ds * qkv[at(j, key, d)];
            r.dqkv[at(j, key, d)] += ds * qkv[at(i, h, d)];
            r.dqkv[at(j, value, d)] += p[i][j] * dout[out_at(i, d)];
          }
        }
      }
    }
  return r;
}

TEST(Attention, AgreesWithWholeMatricesInDouble) {
  for (const char* kernels : {kFast, "reference"})
    for (const Case& c : cases()) {
      if (c.seq == 0 || c.seq > (kEmulated ? 70 : 150) || c.batch > 3 || c.dim > 128 || c.spread != 1)
        continue;
      Lab lab(kernels);
      // Samples rounded to bf16, so that only the arithmetic differs.
      const Floats qkv = lab.floats(lab.random(c.wide(), 1, c.dtype)),
                   dout = lab.floats(lab.random(c.narrow(), 2, c.dtype));
      const Results got = both_passes(lab, c, qkv, dout);
      const Plain want = plain(c, qkv, dout);
      const auto floats = [](const std::vector<double>& v) { return Floats(v.begin(), v.end()); };
      const bool f32 = c.dtype == DType::f32;
      expect_close(got.out, floats(want.out), f32 ? 1e-5 : bf16_forward(1), name(c));
      expect_close(got.max_logits, floats(want.max_logits), 1e-5, name(c));
      // In bf16 backward depends on how out was rounded, too; it is compared with the reference on the same out.
      if (f32) expect_close(got.dqkv, floats(want.dqkv), c.growth() * 2e-5, name(c));
    }
}

TEST(Attention, MaxLogitsMatchReference) {
  for (const Case& c : cases())
    expect_same_as_reference(
        [&](Lab& lab) {
          const Tensor qkv = lab.random(c.wide(), 1, c.dtype, c.spread), most = lab.full({c.heads}, -1e30);
          const Tensor out = lab.empty(c.narrow(), c.dtype), lse = lab.empty(c.sums());
          ops::attention_forward(lab.s, out, lse, qkv, c.batch, c.heads, c.kv_heads, most);
          return lab.floats(most);
        },
        2e-6 * std::sqrt(static_cast<double>(c.dim)), name(c));  // a sum of head_dim products in fp32
}

TEST(Attention, MaxLogitsAreRaisedAndNeverLowered) {
  for (const char* kernels : {kFast, "reference"})
    for (DType t : {DType::f32, DType::bf16}) {
      Lab lab(kernels);
      // Two heads of width 1, two items of three rows; q is 1. Keys of head 0: -4, -3, -2 and -1, -8, -16; of 1: 0.
      Floats values;
      for (float key : {-4.0f, -3.0f, -2.0f, -1.0f, -8.0f, -16.0f})
        values.insert(values.end(), {1, 1, key, 0, 7, 7});
      const Tensor qkv = lab.tensor({6, 6}, values, t), out = lab.empty({6, 2}, t),
                   lse = lab.empty({2, 2, 3});
      const float infinity = std::numeric_limits<float>::infinity();
      const auto after = [&](const Floats& before, const std::vector<int32_t>& lengths = {3, 3}) {
        const Tensor most = lab.tensor({2}, before);
        ops::attention_forward(lab.s, out, lse, qkv, 2, 2, 2, most, 0, {}, lab.ints({2}, lengths));
        return lab.floats(most);
      };
      EXPECT_EQ(after({-infinity, -infinity}), (Floats{-1, 0})) << name_of(t);
      EXPECT_EQ(after({-2, -3}), (Floats{-1, 0})) << name_of(t);
      EXPECT_EQ(after({-0.5f, 1}), (Floats{-0.5f, 1})) << name_of(t);
      EXPECT_EQ(after({5, infinity}), (Floats{5, infinity})) << name_of(t);
      EXPECT_EQ(after({-infinity, -infinity}, {3, 0}), (Floats{-2, 0})) << name_of(t);
      EXPECT_EQ(after({-infinity, -infinity}, {2, 0}), (Floats{-3, 0})) << name_of(t);
      EXPECT_EQ(after({-infinity, -infinity}, {1, 0}), (Floats{-4, 0})) << name_of(t);
      EXPECT_EQ(after({-infinity, -5}, {0, 0}), (Floats{-infinity, -5})) << name_of(t);
    }
}

// Lengths of 0 to seq. Everything else has the bits of a call without them.
TEST(Attention, MaxLogitsLeaveOutPaddingAndNothingElseDependsOnIt) {
  for (const Case& c : cases()) {
    std::vector<int32_t> lengths;
    for (int64_t b = 0; b < c.batch; ++b)
      lengths.push_back(static_cast<int32_t>((b % 3 + 1) * c.seq / 3 - (b % 4 == 3 ? c.seq / 3 : 0)));
    const auto most_of = [&](Lab& lab, bool padded) {
      const Tensor qkv = lab.random(c.wide(), 1, c.dtype, c.spread), most = lab.full({c.heads}, -1e30);
      const Tensor out = lab.empty(c.narrow(), c.dtype), lse = lab.empty(c.sums());
      ops::attention_forward(lab.s, out, lse, qkv, c.batch, c.heads, c.kv_heads, most, 0, {},
                             padded ? lab.ints({c.batch}, lengths) : Tensor());
      return std::array{lab.floats(most), lab.floats(out), lab.floats(lse)};
    };
    expect_same_as_reference([&](Lab& lab) { return most_of(lab, true)[0]; },
                             2e-6 * std::sqrt(static_cast<double>(c.dim)), name(c));
    Lab lab;
    const auto with = most_of(lab, true), without = most_of(lab, false);
    EXPECT_EQ(bits(with[1]), bits(without[1])) << name(c);
    EXPECT_EQ(bits(with[2]), bits(without[2])) << name(c);
  }
}

TEST(Attention, MaxLogitsLeaveOutWhatTheMaskHidesAndNaN) {
  for (const char* kernels : {kFast, "reference"})
    for (DType t : {DType::f32, DType::bf16}) {
      Lab lab(kernels);
      const int64_t seq = 70;
      // One head of width 1: q falls and k rises, so that the largest products are those that no query sees.
      Floats values;
      for (int64_t i = 0; i < seq; ++i)
        values.insert(values.end(), {i == 0 ? 64.0f : 0.5f, static_cast<float>(i + 1), 0});
      const auto most_of = [&](const Floats& v) {
        return both_passes(lab, {1, seq, 1, 1, t}, v, Floats(static_cast<size_t>(seq), 0)).max_logits[0];
      };
      EXPECT_EQ(most_of(values), 64) << name_of(t);  // and not 64 * 70
      values[0] = 0.5f;
      EXPECT_EQ(most_of(values), 35) << name_of(t);
      values[3 * 69] = std::nanf("");
      EXPECT_EQ(most_of(values), 34.5f) << name_of(t);
    }
}

TEST(Attention, HeadsAreChecked) {
  Lab lab;
  auto t = [&](Shape s, DType d = DType::f32) { return lab.empty(std::move(s), d); };
  const Tensor out = t({6, 8}), lse = t({2, 4, 3}), qkv = t({6, 16});  // four heads of width 2, two of keys
  ops::attention_forward(lab.s, out, lse, qkv, 2, 4, 2, t({4}));
  EXPECT_THROW(ops::attention_forward(lab.s, out, lse, qkv, 2, 4, 3), InvalidArgument);
  EXPECT_THROW(ops::attention_forward(lab.s, out, lse, qkv, 2, 4, 8), InvalidArgument);
  EXPECT_THROW(ops::attention_forward(lab.s, out, lse, qkv, 2, 4, -1), InvalidArgument);
  EXPECT_THROW(ops::attention_forward(lab.s, out, lse, qkv, 2, 4, 1), ShapeMismatch);
  EXPECT_THROW(ops::attention_forward(lab.s, out, lse, qkv, 2, 4), ShapeMismatch);
  EXPECT_THROW(ops::attention_forward(lab.s, out, lse, qkv, 2, 4, 2, t({2})), ShapeMismatch);
  EXPECT_THROW(ops::attention_forward(lab.s, out, lse, qkv, 2, 4, 2, t({4}, DType::bf16)), ShapeMismatch);
  const auto with_lengths = [&](const Tensor& lengths) {
    ops::attention_forward(lab.s, out, lse, qkv, 2, 4, 2, t({4}), 0, {}, lengths);
  };
  EXPECT_THROW(with_lengths(lab.ints({3}, {1, 1, 1})), ShapeMismatch);
  EXPECT_THROW(with_lengths(t({2})), ShapeMismatch);
  EXPECT_THROW(ops::attention_backward(lab.s, qkv, out, out, lse, qkv, 2, 4, 3), InvalidArgument);
}

}  // namespace
}  // namespace sherd::test
