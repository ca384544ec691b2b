// Row-wise kernels: distribution of a row over threads, and rows as 16-byte packs. Private to CUDA kernels.
//
// The assignment of elements to threads depends on the row's length alone. Rows that are not aligned to 16
// bytes are read element by element by the same threads, so that their bits are those of aligned ones.
// (For the same bits in both, what two compilations might fuse differently is written as fmaf.) A row has
// fewer than 2^31 elements.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include <sherd/base/error.h>
#include <sherd/kernels/device/ref.h>

#include "block_reduce.h"
#include "vector.h"

namespace sherd::cuda {

__device__ inline uint32_t bits_of(float v) { return __float_as_uint(v); }
__device__ inline uint32_t bits_of(__nv_bfloat16 v) { return __bfloat16_as_ushort(v); }
__device__ inline void set_bits(float& to, uint32_t bits) { to = __uint_as_float(bits); }
__device__ inline void set_bits(__nv_bfloat16& to, uint32_t bits) {
  to = __ushort_as_bfloat16(static_cast<unsigned short>(bits));
}

/// 16 bytes of a row. (Words and not elements, which would take a register each.)
template <class T>
struct [[gnu::may_alias]] alignas(16) Pack {
  static constexpr int kCount = 16 / sizeof(T);
  static constexpr int kBits = 8 * sizeof(T);
  uint32_t word[4];

  /// Element k; k is known to the compiler once its loop is unrolled.
  __device__ float operator[](int k) const {
    if constexpr (kBits == 32) return __uint_as_float(word[k]);
    return __uint_as_float(k % 2 == 0 ? word[k / 2] << 16 : word[k / 2] & 0xffff0000u);
  }
  __device__ uint32_t bits(int k) const { return word[k * kBits / 32] >> (k * kBits % 32); }
};

/// The pack of elements f(0), f(1), ..., rounded.
template <class T, class F>
__device__ Pack<T> pack_of(F f) {
  Pack<T> p;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (Pack<T>::kBits == 32) {
      p.word[i] = __float_as_uint(f(i));
    } else {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(f(2 * i), f(2 * i + 1));
      p.word[i] = bits_of(pair.x) | bits_of(pair.y) << 16;
    }
  }
  return p;
}

template <class T>
constexpr int64_t packs_of(int64_t count) {
  return (count + Pack<T>::kCount - 1) / Pack<T>::kCount;
}

/// A row of `count` elements in global memory, in packs of which the last may be part.
template <class T, bool kAligned>  // see rows_aligned
struct PackedRow {
  using P = Pack<T>;
  T* data;
  int count;

  __device__ int packs() const { return (count + P::kCount - 1) / P::kCount; }

  /// Elements behind the row's end are `outside`.
  __device__ P load(int pack, float outside = 0) const {
    const int first = pack * P::kCount;
    if constexpr (kAligned) {
      if (first < count) return *reinterpret_cast<const P*>(data + first);
      return pack_of<T>([&](int) { return outside; });
    } else {
      P p{};
#pragma unroll
      for (int k = 0; k < P::kCount; ++k) {
        T element;
        put(element, outside);
        if (first + k < count) element = data[first + k];
        p.word[k * P::kBits / 32] |= bits_of(element) << (k * P::kBits % 32);
      }
      return p;
    }
  }
  /// Elements behind the row's end are dropped.
  __device__ void store(int pack, const P& p) const {
    const int first = pack * P::kCount;
    if constexpr (kAligned) {
      if (first < count) *reinterpret_cast<P*>(data + first) = p;
    } else {
#pragma unroll
      for (int k = 0; k < P::kCount; ++k)
        if (first + k < count) set_bits(data[first + k], p.bits(k));
    }
  }
};

/// Returns whether all rows of matrices of `cols` columns are whole packs at multiples of 16 bytes.
template <class T>
bool rows_aligned(int64_t cols, std::initializer_list<const void*> matrices) {
  bool aligned = cols % Pack<T>::kCount == 0;
  for (const void* m : matrices)
    aligned = aligned && on_boundary<T, Pack<T>::kCount>(static_cast<const T*>(m), 0);
  return aligned;
}

/// Row `row` of a matrix of `cols` columns.
template <class T, bool kAligned>
__device__ PackedRow<T, kAligned> row_of(Ref matrix, int64_t row, int64_t cols) {
  return {static_cast<T*>(matrix.data) + row * cols, static_cast<int>(cols)};
}

/// Threads of a block whose rows get kThreads each: several rows by a warp each, or one row.
template <int kThreads>
constexpr int kBlockThreads = kThreads == kWarp ? 256 : kThreads;

/// A thread's row and its place among the kThreads of that row.
template <int kThreads>
struct RowThread {
  static constexpr int kRows = kBlockThreads<kThreads> / kThreads;  // of a block
  int in_block = static_cast<int>(threadIdx.x) / kThreads;
  int64_t row = int64_t{blockIdx.x} * kRows + in_block;
  int thread = static_cast<int>(threadIdx.x) % kThreads;

  __device__ RowThread() {}
};

template <int kThreads>
Grid grid_of_rows(int64_t rows, size_t shared_bytes_of_row = 0) {
  constexpr int kRows = kBlockThreads<kThreads> / kThreads;
  return {dim3(static_cast<unsigned>((rows + kRows - 1) / kRows)), dim3(kBlockThreads<kThreads>),
          kRows * shared_bytes_of_row};
}

template <int kThreads>
using RowThreads = std::integral_constant<int, kThreads>;

/// Calls f(std::true_type) or f(std::false_type).
template <class F>
void with_flag(bool flag, F&& f) {
  if (flag) return f(std::true_type{});
  f(std::false_type{});
}

}  // namespace sherd::cuda
