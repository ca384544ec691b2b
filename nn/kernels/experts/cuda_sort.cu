#include <sherd/nn/kernels/experts/experts.h>

#include <sherd/kernels/device/cuda/rows.h>

// A counting sort. A warp takes a run of kRun places; tallies [experts, runs] first hold how many places of
// each run go to each expert, then how many of that expert lie in earlier runs.
namespace sherd::cuda {
namespace {

constexpr int kRun = 256;
constexpr int kRuns = 8;  // of a block

__global__ void __launch_bounds__(256) clear(int32_t* words, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) words[i] = 0;
}

__global__ void __launch_bounds__(256) count_places(ExpertSortArgs a, int32_t* tallies, int64_t runs) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < a.count; i += step) {
    const int64_t e = a.indices[i];
    if (e >= 0 && e < a.experts) atomicAdd(tallies + e * runs + i / kRun, 1);
  }
}

/// words[i] = the sum of those before it; returns the sum of all. By one warp.
__device__ int32_t sum_before(int32_t* words, int64_t count, int lane) {
  int32_t total = 0;
  for (int64_t first = 0; first < count; first += kWarp) {
    const int32_t mine = first + lane < count ? words[first + lane] : 0;
    int32_t sum = mine;
    for (int step = 1; step < kWarp; step *= 2) {
      const int32_t left = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(step));
      if (lane >= step) sum += left;
    }
    if (first + lane < count) words[first + lane] = total + sum - mine;
    total += __shfl_sync(kAllLanes, sum, kWarp - 1);
  }
  return total;
}

/// A block for each expert.
__global__ void __launch_bounds__(kWarp)
    sum_over_runs(ExpertSortArgs a, int32_t* tallies, int32_t* starts, int64_t runs) {
  const int lane = static_cast<int>(threadIdx.x);
  const int32_t total = sum_before(tallies + blockIdx.x * runs, runs, lane);
  if (lane == 0) a.counts[blockIdx.x] = starts[blockIdx.x] = total;
}

/// starts[e] = the places of experts before e.
__global__ void __launch_bounds__(kWarp) sum_over_experts(int32_t* starts, int64_t experts) {
  sum_before(starts, experts, static_cast<int>(threadIdx.x));
}

__global__ void __launch_bounds__(kRuns* kWarp)
    place(ExpertSortArgs a, int32_t* tallies, const int32_t* starts, int64_t runs) {
  const int64_t run = int64_t{blockIdx.x} * kRuns + threadIdx.x / kWarp;
  if (run >= runs) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t first = run * kRun; first < (run + 1) * kRun; first += kWarp) {
    const int64_t i = first + lane;
    const int32_t index = i < a.count ? a.indices[i] : -1;
    const bool valid = index >= 0 && index < a.experts;
    const int32_t e = valid ? index : -1;
    const unsigned same = __match_any_sync(kAllLanes, e);
    const int before = __popc(same & ((1u << lane) - 1u));
    int32_t* const tally = tallies + e * runs + run;
    int32_t j = 0;
    if (valid && before == 0) {
      j = starts[e] + *tally;
      *tally += __popc(same);
    }
    j = __shfl_sync(kAllLanes, j, __ffs(static_cast<int>(same)) - 1) + before;
    if (valid) {
      a.order[j] = static_cast<int32_t>(i);
      a.position[i] = j;
    }
    __syncwarp();  // another lane may take up the tally
  }
}

}  // namespace

void sort_by_expert(ExecutionContext& context, const ExpertSortArgs& a) {
  if (a.experts == 0) return;
  const int64_t runs = (a.count + kRun - 1) / kRun;
  auto* tallies = static_cast<int32_t*>(context.scratch((runs + 1) * a.experts * 4));
  int32_t* starts = tallies + runs * a.experts;
  const Grid experts{dim3(static_cast<unsigned>(a.experts)), dim3(kWarp)};
  const Grid blocks{dim3(static_cast<unsigned>((runs + kRuns - 1) / kRuns)), dim3(kRuns * kWarp)};
  launch(context, "sort_by_expert", clear, grid_for(runs * a.experts), tallies, runs * a.experts);
  launch(context, "sort_by_expert", count_places, grid_for(a.count), a, tallies, runs);
  launch(context, "sort_by_expert", sum_over_runs, experts, a, tallies, starts, runs);
  launch(context, "sort_by_expert", sum_over_experts, Grid{dim3(1), dim3(kWarp)}, starts, a.experts);
  launch(context, "sort_by_expert", place, blocks, a, tallies, starts, runs);
}

}  // namespace sherd::cuda
