// Heads of latent attention, packed for attention() and back.
#include <sherd/nn/ops.h>

#include <numbers>

#include "kernels/lab.h"

namespace sherd::test {
namespace {

struct LatentCase {
  LatentHeads heads;
  int64_t seq;
  DType dtype;
};

std::vector<LatentCase> latent_cases() {
  std::vector<LatentCase> all;
  for (const DType t : {DType::f32, DType::bf16})
    for (const bool interleaved : {true, false})
      for (const auto& [heads, nope, rope, value, seq] : std::initializer_list<std::array<int64_t, 5>>{
               {1, 0, 2, 1, 1}, {4, 6, 4, 5, 7}, {3, 2, 6, 11, 5}, {2, 128, 64, 128, 3}, {5, 8, 8, 16, 0}})
        all.push_back({{.batch = 2,
                        .heads = heads,
                        .nope = nope,
                        .rope = rope,
                        .value = value,
                        .first_position = 3,
                        .interleaved = interleaved,
                        .rotation_scale = 1.2f,
                        .query_scale = 0.7f},
                       seq,
                       t});
  return all;
}

std::string name(const LatentCase& c) {
  const LatentHeads& h = c.heads;
  return "heads " + std::to_string(h.heads) + " nope " + std::to_string(h.nope) + " rope " +
         std::to_string(h.rope) + " value " + std::to_string(h.value) + " seq " + std::to_string(c.seq) +
         (h.interleaved ? " interleaved " : " halves ") + name_of(c.dtype);
}

/// Inputs and outputs of one case.
struct Latent {
  Latent(Lab& lab, const LatentCase& c)
      : rows(c.heads.batch * c.seq),
        q(lab.random({rows, c.heads.heads * c.heads.key()}, 1, c.dtype)),
        kv(lab.random({rows, c.heads.heads * (c.heads.nope + c.heads.value)}, 2, c.dtype)),
        k_rope(lab.random({rows, c.heads.rope}, 3, c.dtype)),
        qkv(lab.empty({rows, 3 * c.heads.heads * c.heads.width()}, c.dtype)),
        inv_freq(lab.tensor({c.heads.rope / 2}, ops::rope_frequencies(c.heads.rope, 100))) {}
  int64_t rows;
  Tensor q, kv, k_rope, qkv, inv_freq;
};

// Sine, cosine, two products and a sum of values up to 4.5 err by some 2^-24 each; the shared part is a sum over five
// heads at most. bf16: one rounding, on either side of a tie.
double latent_tolerance(DType t) { return t == DType::f32 ? 4e-6 : epsilon(t); }

TEST(Latent, AQuarterTurnHandSized) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    // One pair, which turns by a quarter at each position; rows 0 and 1; values wider than keys.
    const LatentHeads h{.heads = 2, .nope = 1, .rope = 2, .value = 4, .query_scale = 2};
    const Tensor q = lab.tensor({2, 6}, {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6});
    const Tensor kv = lab.tensor({2, 10}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
    const Tensor k_rope = lab.tensor({2, 2}, {7, 8, 7, 8});
    const Tensor f = lab.tensor({1}, {std::numbers::pi_v<float> / 2}), qkv = lab.empty({2, 24});
    ops::pack_latent(lab.s, qkv, q, kv, k_rope, f, h);
    expect_close(lab.floats(qkv),
                 {2, 4,  6, 0, 8, 10,  12, 0, 1, 7,  8, 0, 6, 7,  8, 0, 2, 3, 4, 5, 7, 8, 9, 10,
                  2, -6, 4, 0, 8, -12, 10, 0, 1, -8, 7, 0, 6, -8, 7, 0, 2, 3, 4, 5, 7, 8, 9, 10},
                 2e-6, kernels);
  }
}

TEST(Latent, MatchesReference) {
  for (const LatentCase& c : latent_cases()) {
    expect_same_as_reference(
        [&](Lab& lab) {
          const Latent l(lab, c);
          ops::pack_latent(lab.s, l.qkv, l.q, l.kv, l.k_rope, l.inv_freq, c.heads);
          return lab.floats(l.qkv);
        },
        latent_tolerance(c.dtype), "pack " + name(c));
    expect_same_as_reference(
        [&](Lab& lab) {
          const Latent l(lab, c);
          const Tensor d = lab.random(l.qkv.shape(), 4, c.dtype);
          ops::unpack_latent(lab.s, l.q, l.kv, l.k_rope, d, l.inv_freq, c.heads);
          Floats all = lab.floats(l.q);
          for (const Tensor& t : {l.kv, l.k_rope})
            for (const float v : lab.floats(t)) all.push_back(v);
          return all;
        },
        latent_tolerance(c.dtype), "unpack " + name(c));
  }
}

// Packing is linear: <pack(x), d> = <x, unpack(d)>, up to the rounding of as many products as there are elements.
TEST(Latent, UnpackingIsTheTransposeOfPacking) {
  for (const LatentCase& c : latent_cases()) {
    if (c.dtype != DType::f32) continue;
    Lab lab;
    const Latent l(lab, c);
    const Tensor d = lab.random(l.qkv.shape(), 4);
    ops::pack_latent(lab.s, l.qkv, l.q, l.kv, l.k_rope, l.inv_freq, c.heads);
    const auto inner = [&](const Tensor& a, const Tensor& b) {
      const Floats x = lab.floats(a), y = lab.floats(b);
      double sum = 0;
      for (size_t i = 0; i < x.size(); ++i) sum += double{x[i]} * double{y[i]};
      return sum;
    };
    const double packed = inner(l.qkv, d);
    const Latent g(lab, c);
    ops::unpack_latent(lab.s, g.q, g.kv, g.k_rope, d, g.inv_freq, c.heads);
    const double unpacked = inner(l.q, g.q) + inner(l.kv, g.kv) + inner(l.k_rope, g.k_rope);
    EXPECT_NEAR(packed, unpacked, 1e-6 * (1 + static_cast<double>(l.qkv.numel()))) << name(c);
  }
}

TEST(Latent, ShapesThatDoNotFitAreRefused) {
  Lab lab;
  const LatentCase c = latent_cases()[1];
  const Latent l(lab, c);
  LatentHeads odd = c.heads;
  odd.rope = 3;
  EXPECT_THROW(ops::pack_latent(lab.s, l.qkv, l.q, l.kv, l.k_rope, l.inv_freq, odd), InvalidArgument);
  EXPECT_THROW(ops::pack_latent(lab.s, l.qkv, l.kv, l.q, l.k_rope, l.inv_freq, c.heads), ShapeMismatch);
  LatentHeads more = c.heads;
  more.heads += 1;
  EXPECT_THROW(ops::unpack_latent(lab.s, l.q, l.kv, l.k_rope, l.qkv, l.inv_freq, more), ShapeMismatch);
}

}  // namespace
}  // namespace sherd::test
