#include "cpu_panels.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>

#include <sherd/kernels/device/error.h>

#include "../strided/cpu_transpose.h"

namespace sherd::cpu {

namespace {

/// Requests a row's cache lines: rows of packed tensors are far apart, and the processor does not foresee them.
void prefetch(const bf16* row, int64_t columns) {
  for (int64_t c = 0; c < columns; c += 32) __builtin_prefetch(row + c);
}

}  // namespace

void pack_transposed(const Panels& to, const bf16* x, int64_t step, int64_t rows, int64_t columns) {
  for (int64_t row = 0; row < rows; row += kPanel) {
    const int64_t count = std::min(kPanel, rows - row);
    for (int64_t next = row + kPanel; next < std::min(row + 2 * kPanel, rows); ++next)
      prefetch(x + next * step, columns);
    if (count < kPanel) std::fill_n(to.at(0, row), columns * kPanel, bf16(0.0f));
    // A pair is moved as one word.
    transpose(reinterpret_cast<uint32_t*>(to.at(0, row)), kPanel,
              reinterpret_cast<const uint32_t*>(x + row * step), step / 2, count, columns / 2);
  }
}

#ifdef __x86_64__
namespace {

/// Indices i and distance + i in turn.
[[gnu::target("avx512f,avx512bw")]] __m512i in_turn(int distance) {
  const __m512i numbers = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_add_epi32(_mm512_mullo_epi32(numbers, _mm512_set1_epi32(0x10001)),
                          _mm512_set1_epi32(distance << 16));
}

constexpr int64_t kTileRows = 8;
constexpr int64_t kPairs = 128;  // of a panel: 16 KiB stay in the first-level cache while all rows use them

template <int kRows>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]] void tile(int64_t pairs, const PairedRows& a,
                                                                           const bf16* b, float* c,
                                                                           int64_t ldc, bool add) {
  __m512 sums[kRows][2]{};
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const __m512bh low = (__m512bh)_mm512_loadu_si512(b + pair * 2 * kPanel),
                   high = (__m512bh)_mm512_loadu_si512(b + pair * 2 * kPanel + kPanel);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      int both;
      std::memcpy(&both, a.data + r * a.row_step + pair * a.pair_step, sizeof both);
      const __m512bh repeated = (__m512bh)_mm512_set1_epi32(both);
      sums[r][0] = _mm512_dpbf16_ps(sums[r][0], repeated, low);
      sums[r][1] = _mm512_dpbf16_ps(sums[r][1], repeated, high);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r, c += ldc) {
    if (add) {
      sums[r][0] = _mm512_add_ps(sums[r][0], _mm512_loadu_ps(c));
      sums[r][1] = _mm512_add_ps(sums[r][1], _mm512_loadu_ps(c + 16));
    }
    _mm512_storeu_ps(c, sums[r][0]);
    _mm512_storeu_ps(c + 16, sums[r][1]);
  }
}

/// The tiles of kRows rows, then those of half as many for the rows that are left.
template <int kRows>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]] void tiles(int64_t m, int64_t pairs,
                                                                            PairedRows a, const bf16* b,
                                                                            float* c, int64_t ldc, bool add) {
  for (; m >= kRows; m -= kRows) {
    tile<kRows>(pairs, a, b, c, ldc, add);
    a.data += kRows * a.row_step, c += kRows * ldc;
  }
  if constexpr (kRows > 1) tiles<kRows / 2>(m, pairs, a, b, c, ldc, add);
}

}  // namespace

void multiply(const PanelProduct& p) {
  for (int64_t pair = 0; pair < p.pairs; pair += kPairs) {
    const int64_t count = std::min(kPairs, p.pairs - pair);
    const PairedRows a{p.a.data + pair * p.a.pair_step, p.a.row_step, p.a.pair_step};
    for (int64_t column = 0; column < p.n; column += kPanel)
      tiles<kTileRows>(p.m, count, a, p.b.at(p.first_pair + pair, p.first_column + column), p.c + column,
                       p.ldc, p.add || pair > 0);
  }
}

[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] void pack_rows(const Panels& to, const bf16* x,
                                                                     int64_t step, int64_t rows,
                                                                     int64_t columns) {
  const __m512i low = in_turn(32), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  for (int64_t column = 0; column < columns; column += kPanel) {
    const auto there = static_cast<__mmask32>(~uint64_t{0} >> (64 - std::min(kPanel, columns - column)));
    for (int64_t pair = 0; pair < to.pairs; ++pair) {
      const int64_t row = 2 * pair;
      const bf16* from = x + row * step + column;
      if (column == 0 && row + kPanel + 1 < rows)
        for (const int64_t next : {kPanel, kPanel + 1}) prefetch(from + next * step, columns);
      const __m512i even = _mm512_maskz_loadu_epi16(row < rows ? there : 0, from),
                    odd = _mm512_maskz_loadu_epi16(row + 1 < rows ? there : 0, from + step);
      _mm512_storeu_si512(to.at(pair, column), _mm512_permutex2var_epi16(even, low, odd));
      _mm512_storeu_si512(to.at(pair, column) + kPanel, _mm512_permutex2var_epi16(even, high, odd));
    }
  }
}
#else
namespace {

[[noreturn]] void refuse() { throw NotSupported("attention in bf16: this processor has no AVX512-BF16"); }

}  // namespace

void pack_rows(const Panels&, const bf16*, int64_t, int64_t, int64_t) { refuse(); }
void multiply(const PanelProduct&) { refuse(); }
#endif

}  // namespace sherd::cpu
