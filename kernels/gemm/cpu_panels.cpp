#include "cpu_panels.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>

#include <sherd/base/error.h>
#include <sherd/kernels/device/cpu/transpose.h>
#include <sherd/kernels/device/cpu/vectors.h>

namespace sherd::cpu {

namespace {

/// Requests a row's cache lines: rows of packed tensors are far apart, and the processor does not foresee them.
template <class E>
void prefetch(const E* row, int64_t columns) {
  for (int64_t c = 0; c < columns; c += 16 * kFold<E>) __builtin_prefetch(row + c);
}

/// sum += a * b for 8 columns, or 4 where the compiler may not use AVX: GCC keeps longer vectors in memory then.
struct FusedBase {
  using Element = float;
#ifdef __AVX__
  using Sum = float __attribute__((vector_size(32)));
#else
  using Sum = float __attribute__((vector_size(16)));
#endif
  static void add(Sum& sum, const float* a, const float* b) {
    Sum of_b;
    std::memcpy(&of_b, b, sizeof of_b);
#ifdef __FMA__
    sum = _mm256_fmadd_ps(_mm256_set1_ps(*a), of_b, sum);
#else
    sum += *a * of_b;
#endif
  }
};

#ifdef __x86_64__
/// The same for 16 columns.
struct Fused16 {
  using Element = float;
  using Sum = float __attribute__((vector_size(64)));
  [[gnu::target("avx512f")]] static void add(Sum& sum, const float* a, const float* b) {
    sum = _mm512_fmadd_ps(_mm512_set1_ps(*a), _mm512_loadu_ps(b), sum);
  }
};

/// The same in bf16, with two products a column.
struct Pairs16 {
  using Element = bf16;
  using Sum = float __attribute__((vector_size(64)));
  [[gnu::target("avx512f,avx512bf16")]] static void add(Sum& sum, const bf16* a, const bf16* b) {
    int both;
    std::memcpy(&both, a, sizeof both);
    sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(both), (__m512bh)_mm512_loadu_si512(b));
  }
};
#endif

constexpr int64_t kSteps = 128;  // of a panel: 16 KiB stay in the first-level cache while all rows use them

template <class Math>
constexpr int64_t kLanes = sizeof(typename Math::Sum) / sizeof(float);
/// Rows of a tile, each of two sums: as many as registers hold beside the operands, of which AVX2 has 16.
template <class Math>
constexpr int kTileRows = kLanes<Math> == 16 ? 8 : 6;

template <class Math, int kRows, class E = typename Math::Element>
inline void tile(int64_t steps, const LeftRows<E>& a, const E* b, float* c, int64_t ldc, bool add) {
  using Sum = typename Math::Sum;
  Sum sums[kRows][2]{};
  for (int64_t step = 0; step < steps; ++step)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half)
        Math::add(sums[r][half], a.data + r * a.row_step + step * a.step_step,
                  b + (step * kPanel + half * kLanes<Math>)*kFold<E>);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      float* const to = c + r * ldc + half * kLanes<Math>;
      if (add) {
        Sum before;
        std::memcpy(&before, to, sizeof before);
        sums[r][half] += before;
      }
      std::memcpy(to, &sums[r][half], sizeof(Sum));
    }
}

/// The tiles of kRows rows, then lower ones for the rows that are left. The last 8 rows are two tiles of 4, not of 6 and 2.
template <class Math, int kRows, class E = typename Math::Element>
inline void tiles(int64_t m, int64_t steps, LeftRows<E> a, const E* b, float* c, int64_t ldc, bool add) {
  for (; m >= kRows && (kRows != 6 || m != 8); m -= kRows) {
    tile<Math, kRows>(steps, a, b, c, ldc, add);
    a.data += kRows * a.row_step, c += kRows * ldc;
  }
  if constexpr (kRows > 1) tiles<Math, kRows == 6 ? 4 : kRows / 2>(m, steps, a, b, c, ldc, add);
}

template <class Math, class E = typename Math::Element>
inline void multiply_by(const PanelProduct<E>& p) {
  for (int64_t step = 0; step < p.steps; step += kSteps) {
    const LeftRows<E> a{p.a.data + step * p.a.step_step, p.a.row_step, p.a.step_step};
    for (int64_t column = 0; column < p.n; column += 2 * kLanes<Math>)
      tiles<Math, kTileRows<Math>>(p.m, std::min(kSteps, p.steps - step), a,
                                   p.b.at(p.first_step + step, p.first_column + column), p.c + column, p.ldc,
                                   p.add || step > 0);
  }
}

}  // namespace

template <class E>
void pack_transposed(const Panels<E>& to, const E* x, int64_t stride, int64_t rows, int64_t columns) {
  for (int64_t row = 0; row < rows; row += kPanel) {
    const int64_t count = std::min(kPanel, rows - row);
    for (int64_t next = row + kPanel; next < std::min(row + 2 * kPanel, rows); ++next)
      prefetch(x + next * stride, columns);
    if (count < kPanel) std::fill_n(to.at(0, row), columns * kPanel, E(0.0f));
    // A step's elements are moved as one word.
    transpose(reinterpret_cast<uint32_t*>(to.at(0, row)), kPanel,
              reinterpret_cast<const uint32_t*>(x + row * stride), stride / kFold<E>, count,
              columns / kFold<E>);
  }
}
template void pack_transposed(const Panels<float>&, const float*, int64_t, int64_t, int64_t);
template void pack_transposed(const Panels<bf16>&, const bf16*, int64_t, int64_t, int64_t);

void pack_rows(const Panels<float>& to, const float* x, int64_t stride, int64_t rows, int64_t columns) {
  for (int64_t column = 0; column < columns; column += kPanel) {
    const int64_t count = std::min(kPanel, columns - column);
    for (int64_t row = 0; row < to.steps; ++row) {
      const float* const from = x + row * stride + column;
      float* const panel = to.at(row, column);
      if (column == 0 && row + kPanel < rows) prefetch(from + kPanel * stride, columns);
      const int64_t there = row < rows ? count : 0;
      std::copy_n(from, there, panel);
      std::fill(panel + there, panel + kPanel, 0.0f);
    }
  }
}

void multiply(const PanelProduct<float>& p) {
#ifdef __x86_64__
  if (features().wide_vectors)
    return with_wide_vectors([](const PanelProduct<float>* all) { multiply_by<Fused16>(*all); }, &p);
#endif
  with_base_vectors([](const PanelProduct<float>* all) { multiply_by<FusedBase>(*all); }, &p);
}

#ifdef __x86_64__
[[gnu::flatten, gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]] void multiply(
    const PanelProduct<bf16>& p) {
  multiply_by<Pairs16>(p);
}

namespace {

/// Indices i and distance + i in turn.
[[gnu::target("avx512f,avx512bw")]] __m512i in_turn(int distance) {
  const __m512i numbers = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_add_epi32(_mm512_mullo_epi32(numbers, _mm512_set1_epi32(0x10001)),
                          _mm512_set1_epi32(distance << 16));
}

}  // namespace

[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] void pack_rows(const Panels<bf16>& to, const bf16* x,
                                                                     int64_t stride, int64_t rows,
                                                                     int64_t columns) {
  const __m512i low = in_turn(32), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  for (int64_t column = 0; column < columns; column += kPanel) {
    const auto there = static_cast<__mmask32>(~uint64_t{0} >> (64 - std::min(kPanel, columns - column)));
    for (int64_t pair = 0; pair < to.steps; ++pair) {
      const int64_t row = 2 * pair;
      const bf16* from = x + row * stride + column;
      if (column == 0 && row + kPanel + 1 < rows)
        for (const int64_t next : {kPanel, kPanel + 1}) prefetch(from + next * stride, columns);
      const __m512i even = _mm512_maskz_loadu_epi16(row < rows ? there : 0, from),
                    odd = _mm512_maskz_loadu_epi16(row + 1 < rows ? there : 0, from + stride);
      _mm512_storeu_si512(to.at(pair, column), _mm512_permutex2var_epi16(even, low, odd));
      _mm512_storeu_si512(to.at(pair, column) + kPanel, _mm512_permutex2var_epi16(even, high, odd));
    }
  }
}
#else
namespace {

[[noreturn]] void refuse() {
  throw NotSupported("products of packed bf16: this processor has no AVX512-BF16");
}

}  // namespace

void pack_rows(const Panels<bf16>&, const bf16*, int64_t, int64_t, int64_t) { refuse(); }
void multiply(const PanelProduct<bf16>&) { refuse(); }
#endif

}  // namespace sherd::cpu
