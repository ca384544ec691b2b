// Elements in their rest form for CPU kernels, and noise for many elements at once. Private to CPU kernels.
#pragma once

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <algorithm>
#include <type_traits>

#include <sherd/kernels/rest/rest.h>

namespace sherd::cpu {

/// Two neighbours in 16 bits as one word, the first in its low half. Loops over words need no instruction that narrows or widens.
using Pair [[gnu::may_alias, gnu::aligned(2)]] = uint32_t;
inline float first_of(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
inline float second_of(uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }
/// Same as rounded() of both.
inline uint32_t rounded_pair(float a, float b, uint32_t noise) {
  const uint32_t x = a == a ? std::bit_cast<uint32_t>(a) + (noise & 0xffffu) : kQuietNan,
                 y = b == b ? std::bit_cast<uint32_t>(b) + (noise >> 16) : kQuietNan;
  return x >> 16 | (y & 0xffff0000u);
}

// Each has get(i), put(i, v, 16 bits of noise) and from(i), the elements from i on.

struct InF32 {
  static constexpr bool kDraws = false;
  float* at;
  float get(int64_t i) const { return at[i]; }
  void put(int64_t i, float v, uint16_t) const { at[i] = v; }
  InF32 from(int64_t i) const { return {at + i}; }
};

struct InBf16 {
  static constexpr bool kDraws = true;
  uint16_t* at;
  float get(int64_t i) const { return std::bit_cast<float>(uint32_t{at[i]} << 16); }
  void put(int64_t i, float v, uint16_t noise) const { at[i] = rounded(v, noise).bits; }
  Pair* pairs() const { return reinterpret_cast<Pair*>(at); }
  InBf16 from(int64_t i) const { return {at + i}; }
};

struct InHalves {
  static constexpr bool kDraws = false;
  uint16_t *high, *low;
  float get(int64_t i) const { return joined({high[i], low[i]}); }
  void put(int64_t i, float v, uint16_t) const {
    const SplitWeight w = split(v);
    high[i] = w.high;
    low[i] = w.low;
  }
  InHalves from(int64_t i) const { return {high + i, low + i}; }
};

/// Calls f(make), where make(high, low) gives the weights of a segment.
template <class F>
void with_weights(Master form, F&& f) {
  if (form == Master::bf16) return f([](void* high, void*) { return InBf16{static_cast<uint16_t*>(high)}; });
  if (form == Master::split)
    return f([](void* high, void* low) {
      return InHalves{static_cast<uint16_t*>(high), static_cast<uint16_t*>(low)};
    });
  return f([](void* high, void*) { return InF32{static_cast<float*>(high)}; });
}
/// Calls f(make), where make(at) gives the state of a segment.
template <class F>
void with_state(DType dtype, F&& f) {
  if (dtype == DType::bf16) return f([](void* at) { return InBf16{static_cast<uint16_t*>(at)}; });
  return f([](void* at) { return InF32{static_cast<float*>(at)}; });
}

/// Noise of consecutive elements, for each use; none where no form draws.
template <bool kDraws>
struct Drawn {
  const uint16_t* of[3] = {};
  template <NoiseUse kUse>
  uint16_t at(int64_t i) const {
    if constexpr (kDraws) return of[static_cast<size_t>(kUse)][i];
    return 0;
  }
  const Pair* pairs(NoiseUse use) const {
    return reinterpret_cast<const Pair*>(of[static_cast<size_t>(use)]);
  }
};

namespace detail {

/// Elements that are drawn and used at a time: few enough that the processor draws for the next ones while it waits for divisions.
constexpr int64_t kDrawn = 32;

/// Draws noise of four blocks at a time.
class Draw {
 public:
  explicit Draw(const Noise& noise) : count_(static_cast<uint32_t>(*noise.count)) {
    auto k0 = static_cast<uint32_t>(noise.key), k1 = static_cast<uint32_t>(noise.key >> 32);
    for (auto& of_round : keys_) {
      std::fill_n(of_round[0], kLanes, k0);
      std::fill_n(of_round[1], kLanes, k1);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
  }

  /// to = the noise of four blocks from `first` on, in order of the elements.
  void operator()(uint64_t first, uint16_t* to) const {
#ifdef __AVX2__
    // A word in the low half of each 64-bit lane. The product reads no other bits, so the high halves may hold
    // anything.
    const __m256i a = _mm256_set1_epi64x(0xD2511F53), b = _mm256_set1_epi64x(0xCD9E8D57);
    const auto key = [&](size_t round, size_t word) {
      return _mm256_load_si256(reinterpret_cast<const __m256i*>(keys_[round][word]));
    };
    __m256i w0 =
        _mm256_add_epi64(_mm256_set1_epi64x(static_cast<int64_t>(first)), _mm256_setr_epi64x(0, 1, 2, 3));
    __m256i w1 = _mm256_srli_epi64(w0, 32), w2 = _mm256_set1_epi64x(count_), w3 = _mm256_set1_epi64x(2);
#pragma GCC unroll 7
    for (size_t round = 0; round < kRounds; ++round) {
      const __m256i p = _mm256_mul_epu32(w0, a), q = _mm256_mul_epu32(w2, b);
      w0 = _mm256_xor_si256(_mm256_srli_epi64(q, 32), _mm256_xor_si256(w1, key(round, 0)));
      w2 = _mm256_xor_si256(_mm256_srli_epi64(p, 32), _mm256_xor_si256(w3, key(round, 1)));
      w1 = q;
      w3 = p;
    }
    // Words 0 and 1, and 2 and 3, of a block in a lane; then blocks 0 and 2, and 1 and 3, in a register.
    const __m256i low = _mm256_blend_epi32(w0, _mm256_slli_epi64(w1, 32), 0xAA),
                  high = _mm256_blend_epi32(w2, _mm256_slli_epi64(w3, 32), 0xAA);
    const __m256i even = _mm256_unpacklo_epi64(low, high), odd = _mm256_unpackhi_epi64(low, high);
    auto* const out = reinterpret_cast<__m256i*>(to);
    _mm256_storeu_si256(out, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(even, odd, 0x31));
#else
    for (uint64_t block = first; block < first + 4; ++block)
      for (const uint32_t word : philox4x32<kRounds>(
               {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), count_, 2},
               {static_cast<uint32_t>(keys_[0][0][0]), static_cast<uint32_t>(keys_[0][1][0])})) {
        *to++ = static_cast<uint16_t>(word);
        *to++ = static_cast<uint16_t>(word >> 16);
      }
#endif
  }

 private:
  static constexpr int kRounds = 7, kLanes = 4;
  alignas(32) uint64_t keys_[kRounds][2][kLanes];  // of each round, in every lane
  uint32_t count_;
};

}  // namespace detail

/// Calls f(first, count, Drawn) for the elements [begin, end) of a segment in pieces, most of them of a constant size that is
/// known to the compiler. In one piece where nothing draws.
template <bool kDraws, class F>
void with_noise(const Noise& noise, int64_t begin, int64_t end, F f) {
  if constexpr (!kDraws) {
    f(begin, end - begin, Drawn<false>{});
  } else {
    using detail::kDrawn;
    alignas(64) uint16_t bits[3][kDrawn];
    const detail::Draw draw(noise);
    for (int64_t i = begin; i < end;) {
      const int64_t index = noise.index(i), skipped = index % kDrawn;
      int64_t n = std::min(end - i, kDrawn - skipped);
      if (noise.width != 0) n = std::min(n, noise.width - (noise.first + i) % noise.width);
      draw(static_cast<uint64_t>(index / kDrawn * (kDrawn / 8)), bits[0]);
#pragma omp simd
      for (int64_t k = 0; k < kDrawn; ++k) {
        bits[1][k] = noise_for(NoiseUse::first_state, bits[0][k]);
        bits[2][k] = noise_for(NoiseUse::second_state, bits[0][k]);
      }
      if (n == kDrawn)
        f(i, std::integral_constant<int64_t, kDrawn>{}, Drawn<true>{{bits[0], bits[1], bits[2]}});
      else
        f(i, n, Drawn<true>{{bits[0] + skipped, bits[1] + skipped, bits[2] + skipped}});
      i += n;
    }
  }
}

}  // namespace sherd::cpu
