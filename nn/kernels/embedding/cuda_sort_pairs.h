// Stable sort of positions by the row that each names, by CUB. Private to CUDA kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sherd/kernels/device/cuda/launch.h>
#include <sherd/kernels/gemm/cuda_matrices.h>

namespace sherd::cuda {

/// Rows and the positions that name them.
struct Pairs {
  int32_t* rows = nullptr;
  int32_t* positions = nullptr;
};

/// Device memory that sort_pairs() needs beside its result.
struct SortWork {
  Pairs unsorted;
  char* storage = nullptr;
  size_t storage_bytes = 0;
};
SortWork sort_work(Carver& carver, int64_t count, int64_t rows);

/// Positions 0 to count - 1, ordered by rows[i] = indices[i] - first; equal rows keep their order. An index outside [first, first + rows)
/// counts as row `rows`, behind all others. count and rows are below 2^31.
void sort_pairs(ExecutionContext& context, const Pairs& sorted, const SortWork& work, const int32_t* indices,
                int64_t count, int64_t first, int64_t rows);

/// Returns the first of `count` sorted rows that is not below `row`.
__device__ inline int32_t lower_bound(const int32_t* sorted, int64_t count, int64_t row) {
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    (sorted[middle] < row ? low : high) = middle + (sorted[middle] < row);
  }
  return static_cast<int32_t>(low);
}

}  // namespace sherd::cuda
