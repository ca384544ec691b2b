#include "cpu_rows.h"

#include <algorithm>
#include <limits>

#ifdef __x86_64__
#include <immintrin.h>
#else
#include <sherd/base/error.h>
#endif

namespace sherd::cpu {

#ifdef __x86_64__
namespace {

#define SHERD_WIDE [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]]

constexpr int64_t kLanes = 16;
constexpr __mmask16 kEvery = 0xffff;  // intrinsics without a mask make GCC 12 warn of its own header
constexpr float kLog2E = 1.44269504f;
constexpr float kLeast = -std::numeric_limits<float>::infinity();

/// The lanes of 16 keys from `first` on that are seen.
__mmask16 lanes(SeenKeys seen, int64_t first) {
  const auto below = [&](int64_t key) { return (1u << std::clamp<int64_t>(key - first, 0, kLanes)) - 1; };
  return static_cast<__mmask16>(below(seen.end) & ~below(seen.first));
}

/// 2^x to within 4e-6 relative, with exp2_rough()'s polynomial.
SHERD_WIDE inline __m512 exp2_wide(__m512 x) {
  x = _mm512_maskz_max_ps(kEvery, _mm512_set1_ps(-256.0f),
                          x);  // -infinity minus itself is NaN; the second operand is kept if it is NaN
  const __m512 whole = _mm512_maskz_roundscale_ps(kEvery, x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 r = _mm512_sub_ps(x, whole);
  __m512 p = _mm512_set1_ps(0.009582841f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.055906422f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.24024099f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.6931242f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_maskz_scalef_ps(kEvery, p, whole);
}

/// Combines the lanes, by halves.
template <class F>
SHERD_WIDE inline float over_lanes(__m512 x, F combine) {
  alignas(64) float lane[kLanes];
  _mm512_store_ps(lane, x);
  for (int64_t half = kLanes / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) lane[i] = combine(lane[i], lane[half + i]);
  return lane[0];
}

SHERD_WIDE inline void store_rounded(bf16* to, __m512 low, __m512 high) {
  _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

/// The two rows' elements of 16 keys side by side.
SHERD_WIDE inline void store_pairs(bf16* to, __m512 even, __m512 odd) {
  const __m512i numbers = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                order = _mm512_add_epi32(_mm512_mullo_epi32(numbers, _mm512_set1_epi32(0x10001)),
                                         _mm512_set1_epi32(kLanes << 16));  // i and 16 + i in turn
  const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
  _mm512_storeu_si512(to, _mm512_permutexvar_epi16(order, both));
}

/// 16 scores from `key` on, -infinity for keys that are not seen.
SHERD_WIDE inline __m512 seen_scores(const float* scores, SeenKeys seen, int64_t key) {
  return key >= seen.first && key + kLanes <= seen.end
             ? _mm512_loadu_ps(scores + key)
             : _mm512_mask_loadu_ps(_mm512_set1_ps(kLeast), lanes(seen, key), scores + key);
}

/// Inputs of a row's gradients.
struct GradientRow {
  const float *scores, *dp;
  SeenKeys seen;
  __m512 scale, lse, delta;

  /// p and ds of 16 keys from `key` on.
  template <bool kAll>
  SHERD_WIDE void at(int64_t key, __m512& p, __m512& ds) const {
    const __m512 score = _mm512_mul_ps(_mm512_loadu_ps(scores + key), scale);
    p = exp2_wide(_mm512_mul_ps(_mm512_sub_ps(score, lse), _mm512_set1_ps(kLog2E)));
    ds = _mm512_mul_ps(p, _mm512_sub_ps(_mm512_loadu_ps(dp + key), delta));
    if constexpr (!kAll) {
      const __mmask16 seen_here = lanes(seen, key);
      p = _mm512_maskz_mov_ps(seen_here, p);
      ds = _mm512_maskz_mov_ps(seen_here, ds);
    }
  }
};

SHERD_WIDE GradientRow row_of(const ScoreRow& r, float scale) {
  return {r.scores, r.dp, r.seen, _mm512_set1_ps(scale), _mm512_set1_ps(r.lse), _mm512_set1_ps(r.delta)};
}

/// Gradients of 32 keys from `key` on. kAll: both rows see all of them.
template <bool kAll>
SHERD_WIDE inline void gradients_at(const GradientRows& rows, const GradientRow& even, const GradientRow& odd,
                                    int64_t key) {
  __m512 p[2][2], ds[2][2];
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const int64_t here = key + half * kLanes;
    even.at<kAll>(here, p[0][half], ds[0][half]);
    odd.at<kAll>(here, p[1][half], ds[1][half]);
    store_pairs(rows.paired_p + 2 * here, p[0][half], p[1][half]);
    store_pairs(rows.paired_ds + 2 * here, ds[0][half], ds[1][half]);
  }
  store_rounded(rows.ds_even + key, ds[0][0], ds[0][1]);
  store_rounded(rows.ds_odd + key, ds[1][0], ds[1][1]);
}

}  // namespace

SHERD_WIDE std::pair<float, float> probabilities(bf16* p, const float* scores, SeenKeys seen, int64_t keys,
                                                 float scale) {
  const int64_t first = seen.first / 32 * 32, end = whole_vectors(seen.end, keys);
  __m512 most[2] = {_mm512_set1_ps(kLeast), _mm512_set1_ps(kLeast)};
  for (int64_t key = first; key < end; key += 32)
    for (const int half : {0, 1})
      most[half] = _mm512_maskz_max_ps(kEvery, most[half], seen_scores(scores, seen, key + half * kLanes));
  const float max = over_lanes(_mm512_maskz_max_ps(kEvery, most[0], most[1]),
                               [](float a, float b) { return b > a ? b : a; });
  // Products before or after a difference, never within: a rounded one beside an exact one would leave the largest score a
  // rest, which is hundreds for huge scores.
  const __m512 factor = _mm512_set1_ps(scale * kLog2E), largest = _mm512_set1_ps(max);
  __m512 sums[2]{};
  std::fill_n(p, first, bf16(0.0f));
  for (int64_t key = first; key < end; key += 32) {
    __m512 e[2];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512 score = seen_scores(scores, seen, key + half * kLanes);
      e[half] = exp2_wide(_mm512_mul_ps(_mm512_sub_ps(score, largest), factor));
      sums[half] = _mm512_add_ps(sums[half], e[half]);
    }
    store_rounded(p + key, e[0], e[1]);
  }
  std::fill(p + end, p + keys, bf16(0.0f));
  return {max, over_lanes(_mm512_add_ps(sums[0], sums[1]), [](float a, float b) { return a + b; })};
}

SHERD_WIDE float dot(const bf16* a, const bf16* b, int64_t count) {
  __m512 sum{};
  for (int64_t i = 0; i < count; i += 2 * kLanes) {
    const __mmask16 pairs = lanes({0, count / 2}, i / 2);
    sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_maskz_loadu_epi32(pairs, a + i),
                           (__m512bh)_mm512_maskz_loadu_epi32(pairs, b + i));
  }
  return over_lanes(sum, [](float x, float y) { return x + y; });
}

SHERD_WIDE void round_row(bf16* to, const float* from, int64_t count, float factor) {
  const __m512 factors = _mm512_set1_ps(factor);
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 here = lanes({0, count}, i);
    const __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(here, from + i), factors);
    _mm256_mask_storeu_epi16(to + i, here, (__m256i)_mm512_cvtneps_pbh(scaled));
  }
}

SHERD_WIDE void gradients(const GradientRows& rows, int64_t keys) {
  const GradientRow even = row_of(rows.even, rows.scale), odd = row_of(rows.odd, rows.scale);
  const int64_t first = std::max(even.seen.first, odd.seen.first),
                end = std::min(even.seen.end, odd.seen.end);
  for (int64_t key = 0; key < keys; key += 32)
    if (key >= first && key + 32 <= end)
      gradients_at<true>(rows, even, odd, key);
    else
      gradients_at<false>(rows, even, odd, key);
}
#undef SHERD_WIDE
#else
namespace {

[[noreturn]] void refuse() { throw NotSupported("attention in bf16: this processor has no AVX512-BF16"); }

}  // namespace

std::pair<float, float> probabilities(bf16*, const float*, SeenKeys, int64_t, float) { refuse(); }
float dot(const bf16*, const bf16*, int64_t) { refuse(); }
void round_row(bf16*, const float*, int64_t, float) { refuse(); }
void gradients(const GradientRows&, int64_t) { refuse(); }
#endif

}  // namespace sherd::cpu
