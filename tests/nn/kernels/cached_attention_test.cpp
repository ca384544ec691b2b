#include <limits>

#include <sherd/nn/kernels/attention/cached_attention.h>
#include <sherd/nn/ops.h>

#include "kernels/lab.h"

namespace sherd::test {
namespace {

struct CachedCase {
  int64_t length, rows, heads, kv_heads, dim;
  DType dtype = DType::f32;
  float spread = 1;

  int64_t keys() const { return length + rows; }
  int64_t columns() const { return (heads + 2 * kv_heads) * dim; }
};

std::string name(const CachedCase& c) {
  return "length " + std::to_string(c.length) + " rows " + std::to_string(c.rows) + " heads " +
         std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) + " dim " + std::to_string(c.dim) + " " +
         name_of(c.dtype);
}

const int64_t kCachedSizes[][5] = {
    {0, 1, 1, 1, 1},    {0, 7, 2, 2, 3},  {1, 1, 6, 2, 5},     {63, 2, 4, 1, 20},  {64, 1, 4, 4, 32},
    {130, 3, 8, 2, 64}, {9, 1, 3, 1, 96}, {200, 1, 2, 1, 128}, {40, 5, 2, 2, 136}, {33, 1, 4, 2, 256}};

std::vector<CachedCase> cached_cases() {
  std::vector<CachedCase> all;
  for (DType t : {DType::f32, DType::bf16})
    for (auto [length, rows, heads, kv, dim] : kCachedSizes) all.push_back({length, rows, heads, kv, dim, t});
  all.push_back({70, 2, 2, 1, 8, DType::f32, 30});  // scores in the hundreds: softmax saturates
  return all;
}

/// Returns the output of c's keys, rows of a packed qkv whose last `rows` are new; `behind` fills the cache
/// behind the keys.
Floats attend(Lab& lab, const CachedCase& c, const Floats& qkv, float behind = 7) {
  const int64_t capacity = c.keys() + 3, wide = c.kv_heads * c.dim;
  Floats k(static_cast<size_t>(capacity * wide), behind), v = k;
  for (int64_t row = 0; row < c.keys(); ++row)
    for (int64_t d = 0; d < wide; ++d) {
      const auto from = static_cast<size_t>(row * c.columns() + c.heads * c.dim + d),
                 to = static_cast<size_t>(row * wide + d);
      k[to] = qkv[from];
      v[to] = qkv[from + static_cast<size_t>(wide)];
    }
  const Tensor q = lab.tensor({c.keys(), c.columns()}, qkv, c.dtype)
                       .flat(c.length * c.columns(), c.keys() * c.columns())
                       .view({c.rows, c.columns()});
  const Tensor out = lab.empty({c.rows, c.heads * c.dim}, c.dtype);
  ops::cached_attention(lab.s, out, q, lab.tensor({capacity, wide}, k, c.dtype),
                        lab.tensor({capacity, wide}, v, c.dtype), c.length, c.heads, c.kv_heads);
  return lab.floats(out);
}

Floats packed(const CachedCase& c) { return normal(c.keys() * c.columns(), 1, c.spread); }

// f32 as for attention. In bf16 nothing but the result is rounded, once, by all kernels: u |result|, for
// which the two may take neighbouring values: one epsilon.
double tolerance(const CachedCase& c) {
  return c.dtype == DType::f32 ? 1e-5 * c.spread : epsilon(DType::bf16);
}

TEST(CachedAttention, ReferenceIsTheEndOfTheWholeSequence) {
  for (const CachedCase& c : cached_cases()) {
    Lab lab("reference");
    const Tensor out = lab.empty({c.keys(), c.heads * c.dim}, c.dtype),
                 lse = lab.empty({1, c.heads, c.keys()});
    ops::attention_forward(lab.s, out, lse, lab.tensor({c.keys(), c.columns()}, packed(c), c.dtype), 1,
                           c.heads, c.kv_heads);
    const Floats all = lab.floats(out);
    EXPECT_EQ(bits(attend(lab, c, packed(c))), bits(Floats(all.end() - c.rows * c.heads * c.dim, all.end())))
        << name(c);
  }
}

TEST(CachedAttention, MatchesReference) {
  for (const CachedCase& c : cached_cases())
    expect_same_as_reference([&](Lab& lab) { return attend(lab, c, packed(c)); }, tolerance(c), name(c));
}

TEST(CachedAttention, ReadsNothingBehindTheKeys) {
  const CachedCase c{20, 2, 4, 2, 24};
  Lab lab;
  EXPECT_EQ(bits(attend(lab, c, packed(c), std::numeric_limits<float>::quiet_NaN())),
            bits(attend(lab, c, packed(c), 1)));
}

TEST(CachedAttention, SameBitsWhateverTheThreadsAndTheRowsBeside) {
  for (DType t : {DType::f32, DType::bf16}) {
    const CachedCase three{50, 3, 6, 2, 40, t}, last{52, 1, 6, 2, 40, t};
    Lab one(kFast, 1), four(kFast, 4);
    const Floats all = attend(one, three, packed(three));
    EXPECT_EQ(bits(all), bits(attend(four, three, packed(three))));
    EXPECT_EQ(bits(Floats(all.end() - 6 * 40, all.end())), bits(attend(one, last, packed(three))));
  }
}

TEST(CachedAttention, TakesNoRows) {
  Lab lab;
  const Tensor none = lab.empty({0, 8}), k = lab.empty({4, 8});
  ops::cached_attention(lab.s, none, none, k, k, 4, 2);
  lab.s.synchronize();
}

TEST(CachedAttention, SaysWhatDoesNotFit) {
  Lab lab;
  const auto t = [&](Shape shape, DType dtype = DType::f32) { return lab.empty(std::move(shape), dtype); };
  Stream& s = lab.s;
  EXPECT_THROW(ops::cached_attention(s, t({2, 8}), t({2, 8}), t({5, 8}), t({5, 8}), 4, 2),
               ShapeMismatch);  // 6 rows
  EXPECT_THROW(ops::cached_attention(s, t({2, 8}), t({2, 7}), t({6, 8}), t({6, 8}), 4, 2), ShapeMismatch);
  EXPECT_THROW(ops::cached_attention(s, t({2, 9}), t({2, 16}), t({6, 8}), t({6, 8}), 4, 2), ShapeMismatch);
  EXPECT_THROW(ops::cached_attention(s, t({2, 8}), t({2, 8}), t({6, 8}), t({7, 8}), 4, 2), ShapeMismatch);
  EXPECT_THROW(ops::cached_attention(s, t({2, 8}), t({2, 8}), t({6, 8}), t({6, 8}), 4, 2, 1), ShapeMismatch);
  EXPECT_THROW(ops::cached_attention(s, t({2, 8}), t({2, 8}), t({6, 8}, DType::bf16), t({6, 8}), 4, 2),
               ShapeMismatch);
  EXPECT_THROW(ops::cached_attention(s, t({2, 8}), t({2, 8}), t({6, 8}), t({6, 8}), -1, 2), InvalidArgument);
  EXPECT_THROW(ops::cached_attention(s, t({2, 8}), t({2, 8}), t({6, 8}), t({6, 8}), 4, 4, 3),
               InvalidArgument);
}

}  // namespace
}  // namespace sherd::test
