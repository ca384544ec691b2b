// Rows of fp32 rounded to 16 bits. Private to CPU kernels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <sherd/kernels/device/cpu/dispatch.h>

namespace sherd::cpu {

/// Rounds the first elements by AVX512-BF16, with the bits of bf16's constructor, and returns how many: n rounded down to a
/// multiple of 32, or 0 for a processor without it.
int64_t narrow_by_instructions(bf16* to, const float* from, int64_t n);

/// to[i] = from[i] rounded to its type. The two do not overlap.
template <class T>
void narrow(T* to, const float* from, int64_t n) {
  int64_t first = 0;
  if constexpr (std::is_same_v<T, bf16>) first = narrow_by_instructions(to, from, n);
#pragma omp simd
  for (int64_t i = first; i < n; ++i) store(to[i], from[i]);
}

/// to[i] = value(i) rounded to its type, for i in [0, n). value() is pure, and may read to[i] but no other element of `to`.
template <class T, class F>
void round_each(T* to, int64_t n, F value) {
  if (std::is_same_v<T, float> || n <= 32) {  // fewer are not worth a call
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) store(to[i], value(i));
    return;
  }
  constexpr int64_t kBlock = 512;  // stays in the first-level cache
  alignas(64) float block[kBlock];
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t count = std::min(kBlock, n - first);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) block[i] = value(first + i);
    narrow(to + first, block, count);
  }
}

}  // namespace sherd::cpu
