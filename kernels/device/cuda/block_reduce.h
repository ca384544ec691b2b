// Reductions over the threads that share a row: a warp or a whole block. Every thread gets the same bits, and
// the order of a sum depends on the number of threads alone. Private to CUDA kernels.
#pragma once

#include "launch.h"

namespace sherd::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Max {
  /// NaN loses.
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// Over groups of `lanes` (a power of two) neighbouring lanes; op is commutative. Called by whole warps.
template <class T, class Op>
__device__ T warp_reduce(T value, Op op, int lanes = kWarp) {
  for (int step = lanes / 2; step > 0; step /= 2) value = op(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

/// Over a warp when kThreads is 32, else over the block, which then has kThreads (a power of two) threads.
template <int kThreads, class Op>
__device__ float group_reduce(float value, Op op) {
  value = warp_reduce(value, op);
  if constexpr (kThreads > kWarp) {
    constexpr int kWarps = kThreads / kWarp;
    __shared__ float of_warp[kWarps];
    __syncthreads();  // the last reduction may still be read
    if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = warp_reduce(of_warp[threadIdx.x % kWarps], op, kWarps);
  }
  return value;
}

}  // namespace sherd::cuda
