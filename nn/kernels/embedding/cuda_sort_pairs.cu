#include "cuda_sort_pairs.h"

#include <algorithm>
#include <utility>

#include <sherd/kernels/device/cuda/launch.h>

// A radix sort from the lowest digit up: each pass counts the digits of every tile, turns the counts into
// places (digit by digit, within a digit tile by tile) and moves the pairs there.

namespace sherd::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kEach = 8, kTile = kThreads * kEach;
constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;  // as many as threads
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ unsigned digit_of(uint32_t key, int shift) { return key >> shift & (kDigits - 1); }

/// counts[digit * tiles + tile]
__global__ void __launch_bounds__(kThreads)
    count_digits(uint32_t* counts, const uint32_t* keys, int64_t count, int shift) {
  __shared__ uint32_t histogram[kDigits];
  histogram[threadIdx.x] = 0;
  __syncthreads();
  const int64_t first = int64_t{blockIdx.x} * kTile;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int64_t i = first + k * kThreads + threadIdx.x;
    if (i < count) atomicAdd(&histogram[digit_of(keys[i], shift)], 1u);
  }
  __syncthreads();
  counts[int64_t{threadIdx.x} * gridDim.x + blockIdx.x] = histogram[threadIdx.x];
}

/// counts[i] = the sum of those before it. One block.
__global__ void __launch_bounds__(1024) sum_before(uint32_t* counts, int64_t n) {
  const int64_t each = (n + blockDim.x - 1) / blockDim.x;
  const int64_t begin = int64_t{threadIdx.x} * each < n ? int64_t{threadIdx.x} * each : n;
  const int64_t end = begin + each < n ? begin + each : n;
  uint32_t own = 0;
  for (int64_t i = begin; i < end; ++i) own += counts[i];

  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t upto = own;  // of the lanes up to this one, then of the threads up to this one
  for (unsigned step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, upto, step);
    if (lane >= step) upto += other;
  }
  __shared__ uint32_t of_warp[32];
  if (lane == 31) of_warp[warp] = upto;
  __syncthreads();
  for (unsigned w = 0; w < warp; ++w) upto += of_warp[w];

  uint32_t sum = upto - own;
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t c = counts[i];
    counts[i] = sum;
    sum += c;
  }
}

/// Every warp moves kEach * 32 neighbours in their order; `starts` is what sum_before left.
__global__ void __launch_bounds__(kThreads)
    move_pairs(Pairs to, Pairs from, const uint32_t* starts, int64_t count, int shift) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __shared__ uint32_t next[kWarps][kDigits];  // how many of a digit the warp has seen, then where they go
  for (int w = 0; w < kWarps; ++w) next[w][threadIdx.x] = 0;
  __syncthreads();

  const int64_t first = int64_t{blockIdx.x} * kTile + warp * (kEach * 32) + lane;
  uint32_t rank[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int64_t i = first + k * 32;
    const unsigned digit = i < count ? digit_of(from.keys[i], shift) : kDigits;
    const unsigned same = __match_any_sync(kAllLanes, digit), before = same & ((1u << lane) - 1);
    if (digit < kDigits) rank[k] = next[warp][digit] + static_cast<uint32_t>(__popc(before));
    __syncwarp();
    if (digit < kDigits && before == 0) next[warp][digit] += static_cast<uint32_t>(__popc(same));
    __syncwarp();
  }
  __syncthreads();

  uint32_t start = starts[int64_t{threadIdx.x} * gridDim.x + blockIdx.x];
  for (int w = 0; w < kWarps; ++w) {
    const uint32_t seen = next[w][threadIdx.x];
    next[w][threadIdx.x] = start;
    start += seen;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int64_t i = first + k * 32;
    if (i >= count) continue;
    const uint32_t key = from.keys[i], place = next[warp][digit_of(key, shift)] + rank[k];
    to.keys[place] = key;
    to.places[place] = from.places[i];
  }
}

int64_t tiles_of(int64_t count) { return (count + kTile - 1) / kTile; }

}  // namespace

int64_t sort_scratch_bytes(int64_t count) {
  return tiles_of(count) * kDigits * static_cast<int64_t>(sizeof(uint32_t));
}

Pairs sort_pairs(ExecutionContext& context, Pairs pairs, Pairs spare, int64_t count, uint32_t largest,
                 void* scratch) {
  const int64_t tiles = tiles_of(count);
  auto* counts = static_cast<uint32_t*>(scratch);
  const Grid grid{dim3(static_cast<unsigned>(tiles)), dim3(kThreads)};
  for (int shift = 0; shift < 32 && largest >> shift != 0; shift += kDigitBits) {
    launch(context, "sort", count_digits, grid, counts, pairs.keys, count, shift);
    launch(context, "sort", sum_before, Grid{dim3(1), dim3(1024)}, counts, tiles * kDigits);
    launch(context, "sort", move_pairs, grid, spare, pairs, counts, count, shift);
    std::swap(pairs, spare);
  }
  return pairs;
}

}  // namespace sherd::cuda
