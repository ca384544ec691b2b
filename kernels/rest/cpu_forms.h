// Elements in their rest form for CPU kernels, and noise for many elements at once. Private to CPU kernels.
#pragma once

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <algorithm>
#include <type_traits>

#include <sherd/kernels/rest/detail/with_forms.h>
#include <sherd/kernels/rest/rest.h>

namespace sherd::cpu {

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

template <class F>
void with_weights(Master form, F&& f) {
  rest::with_weights<InF32, InBf16, InHalves>(form, f);
}
template <class F>
void with_state(DType dtype, F&& f) {
  rest::with_state<InF32, InBf16>(dtype, f);
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
  Drawn from(int64_t i) const { return {{of[0] + i, of[1] + i, of[2] + i}}; }
};

namespace detail {

/// Draws noise of kDrawn elements, eight blocks, at a time: two chains of rounds, which a processor overlaps. The rounds are taken
/// in two halves, so they can stand between uses of what was drawn before: it does both at once where it waits for divisions.
class Draw {
 public:
  static constexpr int64_t kDrawn = 64;

  explicit Draw(const Noise& noise) : count_(static_cast<uint32_t>(*noise.count)) {
    auto k0 = static_cast<uint32_t>(noise.key), k1 = static_cast<uint32_t>(noise.key >> 32);
    for (auto& of_round : keys_) {
      std::fill_n(of_round[0], kLanes, k0);
      std::fill_n(of_round[1], kLanes, k1);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
  }

  /// Starts with block number `block`.
  void first_half(uint64_t block) {
#ifdef __AVX2__
    // A word in the low half of each 64-bit lane. The product reads no other bits, so the high halves may hold
    // anything.
    for (uint64_t chain = 0; chain < kChains; ++chain) {
      __m256i(&w)[4] = words_[chain];
      w[0] = _mm256_add_epi64(_mm256_set1_epi64x(static_cast<int64_t>(block + kLanes * chain)),
                              _mm256_setr_epi64x(0, 1, 2, 3));
      w[1] = _mm256_srli_epi64(w[0], 32);
      w[2] = _mm256_set1_epi64x(count_);
      w[3] = _mm256_set1_epi64x(2);
    }
    rounds<0, kRounds / 2>();
#else
    block_ = block;
#endif
  }
  void second_half() {
#ifdef __AVX2__
    rounds<kRounds / 2, kRounds>();
#endif
  }

  /// Writes what was drawn, in order of the elements, for each use.
  void store(uint16_t (&to)[3][kDrawn]) const {
#ifdef __AVX2__
    auto* out = reinterpret_cast<__m256i*>(to[0]);
    for (const __m256i(&w)[4] : words_) {
      // Words 0 and 1, and 2 and 3, of a block in a lane; then blocks 0 and 2, and 1 and 3, in a register.
      const __m256i low = _mm256_blend_epi32(w[0], _mm256_slli_epi64(w[1], 32), 0xAA),
                    high = _mm256_blend_epi32(w[2], _mm256_slli_epi64(w[3], 32), 0xAA);
      const __m256i even = _mm256_unpacklo_epi64(low, high), odd = _mm256_unpackhi_epi64(low, high);
      _mm256_storeu_si256(out++, _mm256_permute2x128_si256(even, odd, 0x20));
      _mm256_storeu_si256(out++, _mm256_permute2x128_si256(even, odd, 0x31));
    }
#else
    uint16_t* out = to[0];
    for (uint64_t block = block_; block < block_ + kDrawn / 8; ++block)
      for (const uint32_t word : philox4x32<kRounds>(
               {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), count_, 2},
               {static_cast<uint32_t>(keys_[0][0][0]), static_cast<uint32_t>(keys_[0][1][0])})) {
        *out++ = static_cast<uint16_t>(word);
        *out++ = static_cast<uint16_t>(word >> 16);
      }
#endif
#pragma omp simd
    for (int64_t k = 0; k < kDrawn; ++k) {
      to[1][k] = noise_for(NoiseUse::first_state, to[0][k]);
      to[2][k] = noise_for(NoiseUse::second_state, to[0][k]);
    }
  }

 private:
  static constexpr size_t kRounds = 7, kLanes = 4, kChains = 2;

#ifdef __AVX2__
  template <size_t kFrom, size_t kTo>
  void rounds() {
    const __m256i a = _mm256_set1_epi64x(0xD2511F53), b = _mm256_set1_epi64x(0xCD9E8D57);
    const auto key = [&](size_t round, size_t word) {
      return _mm256_load_si256(reinterpret_cast<const __m256i*>(keys_[round][word]));
    };
#pragma GCC unroll 7
    for (size_t round = kFrom; round < kTo; ++round) {
#pragma GCC unroll 2
      for (__m256i(&w)[4] : words_) {
        const __m256i p = _mm256_mul_epu32(w[0], a), q = _mm256_mul_epu32(w[2], b);
        w[0] = _mm256_xor_si256(_mm256_srli_epi64(q, 32), _mm256_xor_si256(w[1], key(round, 0)));
        w[2] = _mm256_xor_si256(_mm256_srli_epi64(p, 32), _mm256_xor_si256(w[3], key(round, 1)));
        w[1] = q;
        w[3] = p;
      }
    }
  }
  __m256i words_[kChains][4];
#else
  uint64_t block_ = 0;
#endif
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
    constexpr int64_t kDrawn = detail::Draw::kDrawn;
    constexpr std::integral_constant<int64_t, kDrawn / 2> kHalf;
    alignas(64) uint16_t bits[3][kDrawn];
    const Drawn<true> drawn{{bits[0], bits[1], bits[2]}};
    detail::Draw draw(noise);
    for (int64_t i = begin; i < end;) {
      const int64_t index = noise.index(i), skipped = index % kDrawn;
      const int64_t run =
          noise.width == 0 ? end : std::min(end, i + noise.width - (noise.first + i) % noise.width);
      auto block = static_cast<uint64_t>(index / kDrawn * (kDrawn / 8));
      const auto next = [&] {
        draw.first_half(block);
        draw.second_half();
        draw.store(bits);
      };
      next();
      // Whole pieces, each between the halves of the next draw.
      for (; skipped == 0 && run - i >= kDrawn; i += kDrawn) {
        block += kDrawn / 8;
        f(i, kHalf, drawn);
        draw.first_half(block);
        f(i + kHalf, kHalf, drawn.from(kHalf));
        draw.second_half();
        draw.store(bits);
      }
      if (const int64_t rest = std::min(run - i, kDrawn - skipped); rest > 0) f(i, rest, drawn.from(skipped));
      i += std::min(run - i, kDrawn - skipped);
    }
  }
}

}  // namespace sherd::cpu
