#include "cuda_sort_pairs.h"

#include <cub/device/device_radix_sort.cuh>

#include <algorithm>
#include <bit>

namespace sherd::cuda {
namespace {

__global__ void __launch_bounds__(256)
    make_pairs(Pairs pairs, const int32_t* indices, int64_t count, int64_t first, int64_t rows) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t row = indices[i] - first;
    pairs.rows[i] = static_cast<int32_t>(row >= 0 && row < rows ? row : rows);
    pairs.positions[i] = static_cast<int32_t>(i);
  }
}

/// CUB's sort by the bits that rows have; without storage it only sets `bytes`.
void radix_sort(void* storage, size_t& bytes, const Pairs& sorted, const Pairs& unsorted, int64_t count,
                int64_t rows, cudaStream_t stream) {
  const int bits = std::max(1, static_cast<int>(std::bit_width(static_cast<uint64_t>(rows))));
  check(cub::DeviceRadixSort::SortPairs(storage, bytes, unsorted.rows, sorted.rows, unsorted.positions,
                                        sorted.positions, static_cast<int>(count), 0, bits, stream),
        "sort");
}

}  // namespace

SortWork sort_work(Carver& carver, int64_t count, int64_t rows) {
  SortWork work{.unsorted = {carver.array<int32_t>(count), carver.array<int32_t>(count)}};
  radix_sort(nullptr, work.storage_bytes, {}, {}, count, rows, nullptr);
  work.storage = carver.array<char>(static_cast<int64_t>(work.storage_bytes));
  return work;
}

void sort_pairs(ExecutionContext& context, const Pairs& sorted, const SortWork& work, const int32_t* indices,
                int64_t count, int64_t first, int64_t rows) {
  launch(context, "sort", make_pairs, grid_for(count), work.unsorted, indices, count, first, rows);
  size_t bytes = work.storage_bytes;
  radix_sort(work.storage, bytes, sorted, work.unsorted, count, rows, stream_of(context));
}

}  // namespace sherd::cuda
