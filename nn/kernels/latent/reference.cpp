#include <sherd/nn/kernels/latent/latent.h>

#include <cmath>

#include <sherd/kernels/device/reference/access.h>

namespace sherd::reference {
namespace {

// Places of a pair of a rotary part that begins at `begin`: in the input, and in qkv.
struct LatentPair {
  int64_t first, second;
};
LatentPair latent_source(const LatentHeads& h, int64_t begin, int64_t i) {
  return h.interleaved ? LatentPair{begin + 2 * i, begin + 2 * i + 1}
                       : LatentPair{begin + i, begin + i + h.rope / 2};
}

struct Turn {
  double cos, sin;
};
Turn turn_of(const LatentArgs& a, int64_t row, int64_t i) {
  const float angle = static_cast<float>(a.heads.first_position + row % a.seq) * a.inv_freq[i];
  const double scale = a.heads.rotation_scale;
  return {scale * std::cos(static_cast<double>(angle)), scale * std::sin(static_cast<double>(angle))};
}

// Columns [begin, width) of a head of qkv are 0.
void pad(const LatentArgs& a, int64_t head, int64_t begin) {
  for (int64_t c = begin; c < a.heads.width(); ++c) put(a.qkv, head + c, 0);
}

// A rotary part of `from` at `begin`, to qkv at `at`, times `scale`.
void rotate(const LatentArgs& a, int64_t row, int64_t at, Ref from, int64_t begin, double scale) {
  const int64_t half = a.heads.rope / 2;
  for (int64_t i = 0; i < half; ++i) {
    const LatentPair p = latent_source(a.heads, begin, i);
    const Turn t = turn_of(a, row, i);
    const double x1 = get(from, p.first), x2 = get(from, p.second);
    put(a.qkv, at + i, scale * (x1 * t.cos - x2 * t.sin));
    put(a.qkv, at + i + half, scale * (x2 * t.cos + x1 * t.sin));
  }
}

void pack_latent(ExecutionContext&, const LatentArgs& a) {
  const LatentHeads& h = a.heads;
  const int64_t key = h.key(), width = h.width(), in_kv = h.nope + h.value;
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t n = 0; n < h.heads; ++n) {
      const int64_t q = (3 * r * h.heads + n) * width, k = q + h.heads * width, v = k + h.heads * width;
      const int64_t of_q = (r * h.heads + n) * key, of_kv = (r * h.heads + n) * in_kv;
      for (int64_t c = 0; c < h.nope; ++c) {
        put(a.qkv, q + c, double{h.query_scale} * get(a.q, of_q + c));
        put(a.qkv, k + c, get(a.kv, of_kv + c));
      }
      rotate(a, r, q + h.nope, a.q, of_q + h.nope, h.query_scale);
      rotate(a, r, k + h.nope, a.k_rope, r * h.rope, 1);
      for (int64_t c = 0; c < h.value; ++c) put(a.qkv, v + c, get(a.kv, of_kv + h.nope + c));
      pad(a, q, key), pad(a, k, key), pad(a, v, h.value);
    }
  }
}

void unpack_latent(ExecutionContext&, const LatentArgs& a) {
  const LatentHeads& h = a.heads;
  const int64_t key = h.key(), width = h.width(), in_kv = h.nope + h.value, half = h.rope / 2;
  for (int64_t r = 0; r < a.rows; ++r) {
    const auto head_of = [&](int64_t part, int64_t n) { return ((3 * r + part) * h.heads + n) * width; };
    for (int64_t n = 0; n < h.heads; ++n) {
      const int64_t q = head_of(0, n), of_q = (r * h.heads + n) * key, of_kv = (r * h.heads + n) * in_kv;
      for (int64_t c = 0; c < h.nope; ++c) {
        put(a.q, of_q + c, double{h.query_scale} * get(a.qkv, q + c));
        put(a.kv, of_kv + c, get(a.qkv, head_of(1, n) + c));
      }
      for (int64_t c = 0; c < h.value; ++c) put(a.kv, of_kv + h.nope + c, get(a.qkv, head_of(2, n) + c));
      for (int64_t i = 0; i < half; ++i) {
        const LatentPair p = latent_source(h, of_q + h.nope, i);
        const Turn t = turn_of(a, r, i);
        const double d1 = get(a.qkv, q + h.nope + i), d2 = get(a.qkv, q + h.nope + half + i);
        put(a.q, p.first, double{h.query_scale} * (d1 * t.cos + d2 * t.sin));
        put(a.q, p.second, double{h.query_scale} * (d2 * t.cos - d1 * t.sin));
      }
    }
    for (int64_t i = 0; i < half; ++i) {
      const LatentPair p = latent_source(h, r * h.rope, i);
      const Turn t = turn_of(a, r, i);
      double d1 = 0, d2 = 0;
      for (int64_t n = 0; n < h.heads; ++n) {
        d1 += get(a.qkv, head_of(1, n) + h.nope + i);
        d2 += get(a.qkv, head_of(1, n) + h.nope + half + i);
      }
      put(a.k_rope, p.first, d1 * t.cos + d2 * t.sin);
      put(a.k_rope, p.second, d2 * t.cos - d1 * t.sin);
    }
  }
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const LatentKernels* LatentKernels::reference() {
  static constexpr LatentKernels table{.pack_latent = reference::pack_latent,
                                       .unpack_latent = reference::unpack_latent};
  return &table;
}

}  // namespace sherd
