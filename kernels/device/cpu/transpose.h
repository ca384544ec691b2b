// Transposes of matrices in memory by blocks in registers. Private to CPU kernels.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace sherd::cpu {

// Vectors of unsigned integers: a transpose moves bits. At 128 bits one instruction interleaves two halves.
using Words = uint32_t __attribute__((vector_size(16)));
using HalfWords = uint16_t __attribute__((vector_size(16)));

inline Words interleave_low(Words a, Words b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
inline Words interleave_high(Words a, Words b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
inline HalfWords interleave_low(HalfWords a, HalfWords b) {
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
inline HalfWords interleave_high(HalfWords a, HalfWords b) {
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}

/// to[c * to_step + r] = from[r * from_step + c] for r, c below the vector's length.
template <class T>
void transpose_block(T* to, int64_t to_step, const T* from, int64_t from_step) {
  using Vector = std::conditional_t<sizeof(T) == 4, Words, HalfWords>;
  constexpr int kSide = sizeof(Vector) / sizeof(T);
  Vector rows[kSide], turned[kSide];
  for (int i = 0; i < kSide; ++i) std::memcpy(&rows[i], from + i * from_step, sizeof(Vector));
  // Each round rotates the bits of an element's index, row before column, by one place.
  for (int round = 1; round < kSide; round *= 2) {
    for (int i = 0; i < kSide / 2; ++i) {
      turned[2 * i] = interleave_low(rows[i], rows[i + kSide / 2]);
      turned[2 * i + 1] = interleave_high(rows[i], rows[i + kSide / 2]);
    }
    for (int i = 0; i < kSide; ++i) rows[i] = turned[i];
  }
  for (int i = 0; i < kSide; ++i) std::memcpy(to + i * to_step, &rows[i], sizeof(Vector));
}

/// to[c * to_step + r] = from[r * from_step + c] for r < rows, c < cols. T has 2 or 4 bytes, and may stand for
/// others of its size; the memory does not overlap.
template <class T>
void transpose(T* to, int64_t to_step, const T* from, int64_t from_step, int64_t rows, int64_t cols) {
  constexpr int64_t kSide = sizeof(Words) / sizeof(T);
  const int64_t block_rows = rows - rows % kSide, block_cols = cols - cols % kSide;
  for (int64_t r = 0; r < block_rows; r += kSide)
    for (int64_t c = 0; c < block_cols; c += kSide)
      transpose_block(to + c * to_step + r, to_step, from + r * from_step + c, from_step);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = r < block_rows ? block_cols : 0; c < cols; ++c)
      std::memcpy(to + c * to_step + r, from + r * from_step + c, sizeof(T));
}

}  // namespace sherd::cpu
