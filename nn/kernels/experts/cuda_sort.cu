#include <algorithm>

#include <sherd/nn/kernels/embedding/cuda_sort_pairs.h>
#include <sherd/nn/kernels/experts/experts.h>

namespace sherd::cuda {
namespace {

/// What follows from the order: its inverse, and the places of each expert.
__global__ void __launch_bounds__(256) invert_and_count(ExpertSortArgs a, const int32_t* sorted) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x, most = a.count > a.experts ? a.count : a.experts;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < most; i += step) {
    if (i < a.count) a.position[a.order[i]] = static_cast<int32_t>(i);
    if (i < a.experts) a.counts[i] = lower_bound(sorted, a.count, i + 1) - lower_bound(sorted, a.count, i);
  }
}

}  // namespace

void sort_by_expert(ExecutionContext& context, const ExpertSortArgs& a) {
  struct Work {
    int32_t* sorted;
    SortWork sort;
  };
  const Work w = carve(context, [&](Carver& carver) {
    return Work{carver.array<int32_t>(a.count), sort_work(carver, a.count, a.experts)};
  });
  sort_pairs(context, {w.sorted, a.order}, w.sort, a.indices, a.count, 0, a.experts);
  launch(context, "sort_by_expert", invert_and_count, grid_for(std::max(a.count, a.experts)), a, w.sorted);
}

}  // namespace sherd::cuda
