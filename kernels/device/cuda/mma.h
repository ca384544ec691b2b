// Tensor-core and copy instructions of compute capability 8.0, one small function each.
//
// Beside launch.h and hopper.h the only place that distinguishes nvcc from a host compiler: every function
// has a twin in plain C++, which moves values between the 32 lanes as the PTX manual lays fragments out. All
// lanes of a warp must call together; blocks are one-dimensional.
//
// m16n8k16 with g = lane / 4 and t = lane % 4, two bf16 in a word, the lower column first:
//   A [16 x 16]: word 0 is row g,     columns 2t, 2t+1;  word 1 row g + 8;  words 2, 3 the same at columns + 8
//   B [16 x 8]:  word 0 is column g, rows 2t, 2t+1;      word 1 rows + 8
//   C [16 x 8]:  c0, c1 are row g, columns 2t, 2t+1;     c2, c3 row g + 8
#pragma once

#include <cuda_bf16.h>

#include <bit>
#include <cmath>
#include <cstring>

#include <sherd/kernels/device/dtype.h>

#include "block_reduce.h"

namespace sherd::cuda {

#ifdef __CUDACC__

/// C += A B, the sums in fp32.
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

/// Four 8 x 8 matrices of bf16 from shared memory: lane l names row l % 8 (16 bytes, aligned) of matrix l /
/// 8; word i of lane l is row l / 4, columns 2 (l % 4) and + 1 of matrix i.
__device__ __forceinline__ void load_matrices(uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared_address(row)));
}

/// The same of the transposed matrices: word i of lane l is rows 2 (l % 4) and + 1, column l / 4 of matrix i.
__device__ __forceinline__ void load_transposed(uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared_address(row)));
}

/// Begins to copy 16 aligned bytes to shared memory; zeros when not `inside` (`device` must be valid still).
__device__ __forceinline__ void copy_async(void* shared, const void* device, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(device),
               "r"(inside ? 16 : 0)
               : "memory");
}

/// Waits for all copies that this thread began.
__device__ __forceinline__ void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// 2^x to 2 units in the last place; results below 2^-126 are 0.
__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Both rounded to nearest, `low` in the lower half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

#else

inline float half_of(uint32_t word, int half) {
  return std::bit_cast<float>(half ? word & 0xffff0000u : word << 16);
}

inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
  float row[2][16], column[2][16];  // of A and B, what this lane's four sums need
  for (int from = 0; from < 4; ++from) {
    for (int word = 0; word < 4; ++word) {
      const uint32_t pair = __shfl_sync(kAllLanes, a[word], g * 4 + from);
      for (int half = 0; half < 2; ++half)
        row[word % 2][word / 2 * 8 + from * 2 + half] = half_of(pair, half);
    }
    for (int j = 0; j < 2; ++j) {
      const uint32_t low = __shfl_sync(kAllLanes, b0, (t * 2 + j) * 4 + from);
      const uint32_t high = __shfl_sync(kAllLanes, b1, (t * 2 + j) * 4 + from);
      for (int half = 0; half < 2; ++half) {
        column[j][from * 2 + half] = half_of(low, half);
        column[j][8 + from * 2 + half] = half_of(high, half);
      }
    }
  }
  for (int i = 0; i < 4; ++i) {
    float sum = c[i];
    for (int k = 0; k < 16; ++k) sum += row[i / 2][k] * column[i % 2][k];
    c[i] = sum;
  }
}

/// Row `row` of matrix `matrix`, as the lane that was asked named it.
inline const uint16_t* named_row(const void* mine, int matrix, int row) {
  const auto address = static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(mine));
  return reinterpret_cast<const uint16_t*>(
      static_cast<uintptr_t>(__shfl_sync(kAllLanes, address, matrix * 8 + row)));
}

inline void load_matrices(uint32_t (&words)[4], const void* row) {
  const int lane = static_cast<int>(threadIdx.x % 32), column = lane % 4 * 2;
  for (int i = 0; i < 4; ++i) {
    const uint16_t* from = named_row(row, i, lane / 4);
    words[i] = from[column] | static_cast<uint32_t>(from[column + 1]) << 16;
  }
}

inline void load_transposed(uint32_t (&words)[4], const void* row) {
  const int lane = static_cast<int>(threadIdx.x % 32), first = lane % 4 * 2;
  for (int i = 0; i < 4; ++i) {
    const uint16_t low = named_row(row, i, first)[lane / 4], high = named_row(row, i, first + 1)[lane / 4];
    words[i] = low | static_cast<uint32_t>(high) << 16;
  }
}

inline void copy_async(void* shared, const void* device, bool inside) {
  if (inside)
    std::memcpy(shared, device, 16);
  else
    std::memset(shared, 0, 16);
}

inline void copies_done() {}

inline float fast_exp2(float x) {
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0 : y;
}

inline uint32_t pack_bf16(float low, float high) {
  return bf16(low).bits | static_cast<uint32_t>(bf16(high).bits) << 16;
}

#endif

}  // namespace sherd::cuda
