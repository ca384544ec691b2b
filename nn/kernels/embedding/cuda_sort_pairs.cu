#include "cuda_sort_pairs.h"

#include <thrust/iterator/zip_iterator.h>
#include <thrust/tabulate.h>
#include <thrust/tuple.h>
#include <cub/device/device_radix_sort.cuh>

#include <algorithm>
#include <bit>

#include <sherd/kernels/device/cuda/thrust.h>

namespace sherd::cuda {
namespace {

struct PairAt {
  const int32_t* indices;
  int64_t first, rows;
  __device__ thrust::tuple<int32_t, int32_t> operator()(int64_t position) const {
    const int64_t row = indices[position] - first;
    return {static_cast<int32_t>(row >= 0 && row < rows ? row : rows), static_cast<int32_t>(position)};
  }
};

/// CUB's sort by the bits that rows have (Thrust's is by all 32); without storage it only sets `bytes`.
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
  const auto pairs =
      thrust::make_zip_iterator(thrust::make_tuple(work.unsorted.rows, work.unsorted.positions));
  run_thrust(context, "sort", [=](const auto& policy) {
    thrust::tabulate(policy, pairs, pairs + count, PairAt{indices, first, rows});
  });
  size_t bytes = work.storage_bytes;
  radix_sort(work.storage, bytes, sorted, work.unsorted, count, rows, stream_of(context));
}

}  // namespace sherd::cuda
