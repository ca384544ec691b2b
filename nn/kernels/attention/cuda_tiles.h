// Tiles of bf16 on tensor cores: a warp owns 16 * M rows in registers, as accumulators of m16n8k16, and meets
// tiles of other rows in shared memory. Private to the attention kernels.
//
// A tile's row is D elements and 16 bytes of padding, so that the eight rows of an ldmatrix are in different
// banks. Heads narrower than D are padded with zeros.
#pragma once

#include <sherd/kernels/device/cuda/mma.h>

#include "cuda_attention.h"

namespace sherd::cuda {

inline constexpr int kWarps = 4;
inline constexpr int kTileThreads = 32 * kWarps;

template <int D>
inline constexpr int kStride = D + 8;

/// Accumulators of 16 * M rows and N columns: [m][n][2 * (row half) + (column of the pair)].
template <int M, int N>
using Block = float[M][N / 8][4];

/// Calls visit(value, row, column) for what this lane holds of a Block.
template <int M, int N, class Visit>
__device__ __forceinline__ void for_each(Block<M, N>& c, Visit&& visit) {
  const int row = static_cast<int>(threadIdx.x % 32 / 4), column = static_cast<int>(threadIdx.x % 4 * 2);
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) visit(c[m][n][i], m * 16 + i / 2 * 8 + row, n * 8 + i % 2 + column);
}

/// Rows between the pieces of 8 elements that one of `Threads` threads takes of a tile, all in one column.
template <int D, int Threads>
inline constexpr int kStep = Threads / (D / 8);

/// Calls visit(row, column) for this thread's pieces of an [N, D] tile, in increasing rows.
template <int N, int D, int Threads, class Visit>
__device__ __forceinline__ void for_each_piece(Visit&& visit) {
  const unsigned thread = threadIdx.x % Threads;
  const int begin = static_cast<int>(thread / (D / 8)), column = static_cast<int>(thread % (D / 8)) * 8;
  constexpr int step = kStep<D, Threads>;
  if (Threads % (D / 8) != 0 && begin >= step) return;
#pragma unroll
  for (int row = 0; row < N; row += step)
    if (N % step == 0 || row + begin < N) visit(row + begin, column);
}

/// Begins to copy rows [first, first + N) into a tile; those outside become 0.
template <int N, int D>
__device__ __forceinline__ void load_tile(__nv_bfloat16* tile, const Rows<const __nv_bfloat16>& m,
                                          int first) {
  constexpr int step = kStep<D, kTileThreads>;
  const int begin = static_cast<int>(threadIdx.x / (D / 8)),
            column = static_cast<int>(threadIdx.x % (D / 8)) * 8;
  const int left = m.count - first, wide = m.width - column;
  const __nv_bfloat16* from = m.row(first + begin) + column;
  if (m.vectors) {
    for_each_piece<N, D, kTileThreads>([&](int row, int) {
      const bool inside = row < left && wide > 0;
      copy_async(tile + row * kStride<D> + column, inside ? from : m.row(0), inside);
      from += step * m.stride;
    });
    return;
  }
#pragma unroll 1
  for (int row = begin; row < N && begin < step; row += step) {
#pragma unroll 1
    for (int i = 0; i < 8; ++i)
      tile[row * kStride<D> + column + i] = row < left && i < wide ? from[i] : __nv_bfloat16{};
    from += step * m.stride;
  }
}

/// c += a b^T: 16 * M rows of `a` times the N rows of `b`.
template <int M, int N, int D>
__device__ __forceinline__ void add_dots(Block<M, N>& c, const __nv_bfloat16* a, const __nv_bfloat16* b) {
  const unsigned lane = threadIdx.x % 32;
  const __nv_bfloat16* a_row = a + lane % 16 * kStride<D> + lane / 16 * 8;
  const __nv_bfloat16* b_row = b + (lane / 16 * 8 + lane % 8) * kStride<D> + lane / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < D; k += 16) {
    uint32_t left[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m) load_matrices(left[m], a_row + m * 16 * kStride<D> + k);
#pragma unroll
    for (int n = 0; n < N / 8; n += 2) {
      uint32_t right[4];
      load_matrices(right, b_row + n * 8 * kStride<D> + k);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        mma(c[m][n], left[m], right[0], right[1]);
        mma(c[m][n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

/// A Block rounded to bf16, as the left side of a product.
template <int M, int N>
struct Left {
  uint32_t words[N / 16][M][4];

  __device__ __forceinline__ void operator=(const Block<M, N>& c) {
#pragma unroll
    for (int k = 0; k < N / 16; ++k)
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* pair = c[m][2 * k + i / 2] + i % 2 * 2;
          words[k][m][i] = pack_bf16(pair[0], pair[1]);
        }
  }
};

/// c += p b: p times the N rows of `b`.
template <int M, int N, int D>
__device__ __forceinline__ void add_mixture(Block<M, D>& c, const Left<M, N>& p, const __nv_bfloat16* b) {
  const unsigned lane = threadIdx.x % 32;
  const __nv_bfloat16* b_row = b + lane % 16 * kStride<D> + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < N / 16; ++k) {
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      uint32_t right[4];
      load_transposed(right, b_row + k * 16 * kStride<D> + n * 8);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        mma(c[m][n], p.words[k][m], right[0], right[1]);
        mma(c[m][n + 1], p.words[k][m], right[2], right[3]);
      }
    }
  }
}

// A masked probability is 0, and 0 times NaN is NaN: on the diagonal a value that is not finite would reach
// rows that do not see it. Such tiles are taken apart: rows that see the value get it, then it becomes 0.

__device__ __forceinline__ bool finite(__nv_bfloat16 x) {
  const float magnitude = fabsf(__bfloat162float(x));
  return magnitude < INFINITY;
}

/// Returns whether one of the elements that this thread copied by load_tile is not finite.
template <int N, int D>
__device__ __forceinline__ bool copied_non_finite(const __nv_bfloat16* tile) {
  bool found = false;
  for_each_piece<N, D, kTileThreads>([&](int row, int column) {
    const Vec<__nv_bfloat16, 8> piece = load<8>(tile + row * kStride<D> + column, 0);
#pragma unroll
    for (int i = 0; i < 8; ++i) found = found || !finite(piece[i]);
  });
  return found;
}

template <int M, int N, int D, class Sees>
__device__ __attribute__((noinline)) void add_non_finite_in_memory(Block<M, D>& c, const __nv_bfloat16* tile,
                                                                   Sees sees) {
#pragma unroll 1
  for (int j = 0; j < N; ++j)
    for_each<M, D>(c, [&](float& sum, int row, int column) {
      const __nv_bfloat16 x = tile[j * kStride<D> + column];
      if (!finite(x) && sees(row, j)) sum += __bfloat162float(x);
    });
}

/// c[row] += what is not finite in tile[j], for every j of which sees(row, j). Slow and seldom: a copy keeps
/// it from costing the kernel registers.
template <int M, int N, int D, class Sees>
__device__ __forceinline__ void add_non_finite(Block<M, D>& c, const __nv_bfloat16* tile, Sees sees) {
  Block<M, D> copy;
  memcpy(copy, c, sizeof copy);
  add_non_finite_in_memory<M, N, D>(copy, tile, sees);
  memcpy(c, copy, sizeof copy);
}

template <int N, int D>
__device__ __forceinline__ void zero_non_finite(__nv_bfloat16* tile) {
  for_each_piece<N, D, kTileThreads>([&](int row, int column) {
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {
      __nv_bfloat16& x = tile[row * kStride<D> + column + i];
      if (!finite(x)) x = __nv_bfloat16{};
    }
  });
}

/// Writes 16 * M rows from `first` on, rounded. `tile` is the warp's own room for as many rows.
template <int M, int D>
__device__ __forceinline__ void store_rows(const Rows<__nv_bfloat16>& m, int first, Block<M, D>& c,
                                           __nv_bfloat16* tile) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  __syncwarp();
#pragma unroll
  for (int a = 0; a < M; ++a)
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<__nv_bfloat162*>(tile + (a * 16 + lane / 4 + half * 8) * kStride<D> + n * 8 +
                                           lane % 4 * 2) =
            __floats2bfloat162_rn(c[a][n][half * 2], c[a][n][half * 2 + 1]);
  __syncwarp();
  for_each_piece<16 * M, D, 32>([&](int row, int column) {
    if (first + row >= m.count || column >= m.width) return;
    const __nv_bfloat16* from = tile + row * kStride<D> + column;
    __nv_bfloat16* to = m.row(first + row) + column;
    if (m.vectors)
      store(to, 0, load<8>(from, 0));
    else
      for (int i = 0; i < 8 && column + i < m.width; ++i) to[i] = from[i];
  });
}

}  // namespace sherd::cuda
