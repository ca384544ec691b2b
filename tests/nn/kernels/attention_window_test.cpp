// Attention in windows: what rows see, beside the reference and beside sequences cut by hand.
#include <sherd/nn/kernels/attention/cached_attention.h>
#include <sherd/nn/ops.h>

#include <sherd/kernels/device/cpu/features.h>

#include "kernels/lab.h"

namespace sherd::test {
namespace {

struct WindowCase {
  int64_t batch, seq, heads, kv_heads, dim, window;
  DType dtype = DType::f32;

  int64_t columns() const { return (heads + 2 * kv_heads) * dim; }
  Shape wide() const { return {batch * seq, columns()}; }
  Shape narrow() const { return {batch * seq, heads * dim}; }
};

std::string name(const WindowCase& c) {
  return "seq " + std::to_string(c.seq) + " window " + std::to_string(c.window) + " heads " +
         std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) + " dim " + std::to_string(c.dim) + " " +
         name_of(c.dtype);
}

const int64_t kWindowSizes[][6] = {{2, 7, 4, 2, 6, 3},     {1, 65, 2, 1, 8, 1},     {2, 130, 2, 2, 12, 64},
                                   {1, 200, 3, 1, 16, 65}, {1, 300, 2, 1, 24, 33},  {1, 300, 1, 1, 64, 129},
                                   {1, 150, 2, 1, 80, 50}, {1, 161, 1, 1, 128, 40}, {1, 100, 1, 1, 136, 30}};

// Windows within, at and across the blocks of 32, 64 and 128 rows that the kernels work in.
std::vector<WindowCase> window_cases() {
  std::vector<WindowCase> all;
  for (const DType t : {DType::f32, DType::bf16})
    for (auto [b, s, h, kv, d, w] : kWindowSizes) all.push_back({b, s, h, kv, d, w, t});
  return all;
}

struct Passes {
  Floats out, lse, dqkv, max_logits;
};

/// @param starts as AttentionArgs::starts, or empty
Passes passes(Lab& lab, const WindowCase& c, const Floats& qkv_values,
              const std::vector<int32_t>& starts = {}) {
  const Tensor first = starts.empty() ? Tensor() : lab.ints({c.batch, c.seq}, starts);
  const Tensor qkv = lab.tensor(c.wide(), qkv_values, c.dtype), dqkv = lab.empty(c.wide(), c.dtype);
  const Tensor out = lab.empty(c.narrow(), c.dtype), lse = lab.empty({c.batch, c.heads, c.seq});
  const Tensor most = lab.full({c.heads}, -1e30), dout = lab.random(c.narrow(), 2, c.dtype);
  ops::attention_forward(lab.s, out, lse, qkv, c.batch, c.heads, c.kv_heads, most, c.window, first);
  ops::attention_backward(lab.s, dqkv, dout, out, lse, qkv, c.batch, c.heads, c.kv_heads, c.window, first);
  return {lab.floats(out), lab.floats(lse), lab.floats(dqkv), lab.floats(most)};
}

Floats values_of(const WindowCase& c) { return normal(numel_of(c.wide()), 1); }

// Fewer keys than without a window: the bounds of attention_test.cpp hold.
TEST(AttentionWindow, BothPassesMatchReference) {
  const bool rounds = kCuda || cpu::features().bf16_products != nullptr;
  for (const WindowCase& c : window_cases()) {
    const double growth = std::sqrt(static_cast<double>(c.heads) / static_cast<double>(c.kv_heads));
    const bool f32 = c.dtype == DType::f32;
    expect_same_as_reference([&](Lab& lab) { return passes(lab, c, values_of(c)).out; },
                             f32 ? 1e-5 : (rounds ? 4.5 / 2 : 1) * epsilon(c.dtype), name(c) + " out");
    expect_same_as_reference([&](Lab& lab) { return passes(lab, c, values_of(c)).lse; }, 1e-5,
                             name(c) + " lse");
    expect_same_as_reference([&](Lab& lab) { return passes(lab, c, values_of(c)).max_logits; }, 1e-5,
                             name(c) + " max_logits");
    // In bf16 the two forwards also differ, and so do the sums of dout * out: 2x the bound.
    expect_same_as_reference([&](Lab& lab) { return passes(lab, c, values_of(c)).dqkv; },
                             growth * (f32 ? 2e-5 : (rounds ? 7.0 : 2) * epsilon(c.dtype)),
                             name(c) + " dqkv");
  }
}

// A window and a document's beginning: the later of the two bounds holds, as in the reference.
TEST(AttentionWindow, DocumentsInARowHaveWindows) {
  const bool rounds = kCuda || cpu::features().bf16_products != nullptr;
  for (const WindowCase& c : window_cases()) {
    std::vector<int32_t> starts;
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t t = 0; t < c.seq; ++t) starts.push_back(static_cast<int32_t>(t - t % 50));
    const bool f32 = c.dtype == DType::f32;
    expect_same_as_reference([&](Lab& lab) { return passes(lab, c, values_of(c), starts).out; },
                             f32 ? 1e-5 : (rounds ? 4.5 / 2 : 1) * epsilon(c.dtype), name(c) + " out");
    const double growth = std::sqrt(static_cast<double>(c.heads) / static_cast<double>(c.kv_heads));
    expect_same_as_reference([&](Lab& lab) { return passes(lab, c, values_of(c), starts).dqkv; },
                             growth * (f32 ? 2e-5 : (rounds ? 7.0 : 2) * epsilon(c.dtype)),
                             name(c) + " dqkv");
  }
}

// Row i of a sequence with a window is the last row of the sequence of its keys alone, without one.
TEST(AttentionWindow, ARowSeesTheKeysOfItsWindowAlone) {
  Lab lab("reference");
  const WindowCase c{1, 12, 4, 2, 6, 5};
  const Floats qkv = values_of(c), out = passes(lab, c, qkv).out;
  for (int64_t i = 0; i < c.seq; ++i) {
    const int64_t first = std::max<int64_t>(0, i - 4), rows = i + 1 - first;
    const Floats keys(qkv.begin() + first * c.columns(), qkv.begin() + (i + 1) * c.columns());
    const Floats alone = passes(lab, {1, rows, 4, 2, 6, 0}, keys).out;
    EXPECT_EQ(bits(Floats(alone.end() - 24, alone.end())),
              bits(Floats(out.begin() + i * 24, out.begin() + (i + 1) * 24)))
        << i;
  }
}

TEST(AttentionWindow, ReferenceBackwardIsTheGradient) {
  const int64_t batch = 2, seq = 6, heads = 4, kv_heads = 2, dim = 3;
  std::vector<double> qkv = doubles(batch * seq * (heads + 2 * kv_heads) * dim, 1),
                      dout = doubles(batch * seq * heads * dim, 2);
  std::vector<double> out(dout.size()), dqkv(qkv.size());
  std::vector<float> lse(static_cast<size_t>(batch * heads * seq));
  AttentionArgs a{.batch = batch, .seq = seq, .heads = heads, .kv_heads = kv_heads, .head_dim = dim};
  a.qkv = ref(qkv), a.out = ref(out), a.lse = lse.data(), a.dout = ref(dout), a.dqkv = ref(dqkv);
  a.window = 3;
  const auto loss = [&] {
    AttentionKernels::reference()->attention_forward(no_context(), a);
    return dot(out, dout);
  };
  loss();
  AttentionKernels::reference()->attention_backward(no_context(), a);
  expect_gradient(qkv, dqkv, loss, 3e-6);  // lse is kept in fp32
}

TEST(AttentionWindow, OneOfAllPositionsChangesNoBit) {
  for (const DType t : {DType::f32, DType::bf16}) {
    Lab lab;
    const WindowCase c{2, 70, 4, 2, 16, 70, t}, without{2, 70, 4, 2, 16, 0, t};
    const Passes got = passes(lab, c, values_of(c)), want = passes(lab, without, values_of(c));
    EXPECT_EQ(bits(got.out), bits(want.out));
    EXPECT_EQ(bits(got.dqkv), bits(want.dqkv));
  }
}

TEST(AttentionWindow, RowsBehindACacheSeeTheSameKeys) {
  for (const DType t : {DType::f32, DType::bf16})
    for (const int64_t window : {1, 9, 40, 90}) {
      const int64_t length = 37, rows = 3, heads = 4, kv_heads = 2, dim = 20;
      const WindowCase c{1, length + rows, heads, kv_heads, dim, window, t};
      Lab oracle("reference"), lab;
      const Floats want = passes(oracle, c, values_of(c)).out;
      const Tensor qkv = lab.tensor(c.wide(), values_of(c), t);
      const Tensor k = lab.empty({c.seq, kv_heads * dim}, t), v = lab.empty(k.shape(), t);
      const auto columns = [&](const Tensor& to, int64_t begin) {
        ops::strided_copy(lab.s, to, to.size(1), qkv.flat(begin, qkv.numel()), c.columns(), c.seq,
                          to.size(1));
      };
      columns(k, heads * dim);
      columns(v, (heads + kv_heads) * dim);
      const Tensor out = lab.empty({rows, heads * dim}, t);
      ops::cached_attention(lab.s, out, qkv.rows(length, c.seq), k, v, length, heads, kv_heads, window);
      expect_close(lab.floats(out), Floats(want.end() - rows * heads * dim, want.end()),
                   t == DType::f32 ? 1e-5 : epsilon(t), name(c));
    }
}

TEST(AttentionWindow, RefusesInvalidWindows) {
  Lab lab;
  const WindowCase c{1, 6, 2, 1, 4, -1};
  EXPECT_THROW(passes(lab, c, values_of(c)), InvalidArgument);
}

}  // namespace
}  // namespace sherd::test
