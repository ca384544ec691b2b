#include <sherd/kernels/device/cuda/thrust.h>
#include <sherd/nn/kernels/embedding/cuda_sort_pairs.h>
#include <sherd/nn/kernels/experts/experts.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/scatter.h>
#include <thrust/tabulate.h>

namespace sherd::cuda {
namespace {

struct PlacesOf {
  const int32_t* sorted;
  int64_t count;
  __device__ int32_t operator()(int64_t expert) const {
    return lower_bound(sorted, count, expert + 1) - lower_bound(sorted, count, expert);
  }
};

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
  run_thrust(context, "sort_by_expert", [a, sorted = w.sorted](const auto& policy) {
    const thrust::counting_iterator<int32_t> places(0);
    thrust::scatter(policy, places, places + a.count, a.order, a.position);
    thrust::tabulate(policy, a.counts, a.counts + a.experts, PlacesOf{sorted, a.count});
  });
}

}  // namespace sherd::cuda
