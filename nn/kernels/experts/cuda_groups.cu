#include <sherd/nn/kernels/experts/experts.h>

#include <algorithm>

#include <sherd/kernels/device/cuda/rows.h>

#include "cuda_padding.h"

// A warp works on a row, its lanes on groups and experts lane, lane + 32, ... Selection scores are in shared
// memory.
namespace sherd::cuda {
namespace {

constexpr int kMostRows = 8;                // of a block
constexpr int64_t kMostExperts = 8 * 1024;  // whose scores fit the shared memory that any kernel may have

/// Candidates are ordered by value, then by index; NaN is -infinity.
struct Pick {
  float value;
  int64_t index;
};
__device__ bool before(const Pick& a, const Pick& b) {
  return a.value > b.value || (a.value == b.value && a.index < b.index);
}

/// Returns the first of `count` candidates after `last`, for the whole warp.
template <class F>
__device__ Pick next(int64_t count, const Pick& last, int lane, F value_of) {
  Pick best{-INFINITY, INT64_MAX};
  for (int64_t i = lane; i < count; i += kWarp) {
    const Pick p{value_of(i), i};
    if (before(last, p) && before(p, best)) best = p;
  }
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Pick other{__shfl_xor_sync(kAllLanes, best.value, step),
                     __shfl_xor_sync(kAllLanes, best.index, step)};
    if (before(other, best)) best = other;
  }
  return best;
}

__device__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/// The sum of the two largest of a group's scores.
__device__ float score_of_group(const float* scores, int64_t size) {
  float first = -INFINITY, second = -INFINITY;
  for (int64_t i = 0; i < size; ++i) {
    if (scores[i] > first) {
      second = first;
      first = scores[i];
    } else if (scores[i] > second) {
      second = scores[i];
    }
  }
  return first + second;
}

/// Gives the experts of groups that the row may not choose a score of -infinity.
__device__ void close_groups(const GroupRouteArgs& a, float* scores, int lane) {
  const int64_t size = a.experts / a.groups;
  const auto value = [&](int64_t g) { return score_of_group(scores + g * size, size); };
  Pick last{INFINITY, -1};
  for (int64_t i = 0; i < a.top_groups; ++i) last = next(a.groups, last, lane, value);
  __syncwarp();
  for (int64_t g = lane; g < a.groups; g += kWarp)
    if (before(last, Pick{value(g), g}))
      for (int64_t i = 0; i < size; ++i) scores[g * size + i] = -INFINITY;
  __syncwarp();
}

template <class T>
__global__ void __launch_bounds__(kMostRows* kWarp) route_rows_in_groups(GroupRouteArgs a) {
  SHERD_DYNAMIC_SHARED(float, all_scores);
  __shared__ int32_t all_chosen[kMostRows][ops::kMostExpertsOfARow];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t r = int64_t{blockIdx.x} * (blockDim.x / kWarp) + warp;
  if (r >= a.rows) return;
  float* const scores = all_scores + warp * a.experts;
  int32_t* const chosen = all_chosen[warp];
  const T* const row = static_cast<const T*>(a.logits.data) + r * a.experts;
  for (int64_t e = lane; e < a.experts; e += kWarp) {
    const float score = sigmoid(to_float(row[e])) + (a.bias != nullptr ? a.bias[e] : 0.0f);
    scores[e] = isnan(score) ? -INFINITY : score;
  }
  __syncwarp();
  if (a.groups > 1) close_groups(a, scores, lane);
  Pick last{INFINITY, -1};
  for (int64_t i = 0; i < a.k; ++i) {
    last = next(a.experts, last, lane, [&](int64_t e) { return scores[e]; });
    if (lane == 0) chosen[i] = a.indices[r * a.k + i] = static_cast<int32_t>(last.index);
  }
  __syncwarp();
  float sum = 1e-20f;
  for (int64_t i = 0; i < a.k; ++i) sum += sigmoid(to_float(row[chosen[i]]));
  for (int64_t i = lane; i < a.k; i += kWarp)
    static_cast<float*>(a.gates.data)[r * a.k + i] =
        a.scaling * sigmoid(to_float(row[chosen[i]])) / (a.normalised ? sum : 1.0f);
}

template <class T, class D>
__global__ void __launch_bounds__(kMostRows* kWarp) route_rows_in_groups_backward(GroupRouteArgs a) {
  const int64_t r = int64_t{blockIdx.x} * kMostRows + threadIdx.x / kWarp;
  if (r >= a.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const T* const row = static_cast<const T*>(a.logits.data) + r * a.experts;
  const int32_t* const chosen = a.indices + r * a.k;
  const float* const dgates = static_cast<const float*>(a.dgates.data) + r * a.k;
  const auto score = [&](int64_t e) { return e >= 0 && e < a.experts ? sigmoid(to_float(row[e])) : NAN; };
  float sum = 1e-20f, mean = 0;
  for (int64_t i = 0; i < a.k; ++i) sum += score(chosen[i]);
  for (int64_t i = 0; i < a.k; ++i) mean += dgates[i] * score(chosen[i]) / sum;
  const int64_t sequence = (a.first_row + r) / a.seq;
  const int32_t* const counts =
      a.counts == nullptr || row_is_padding(a, r) ? nullptr : a.counts + sequence * a.experts;
  float total = 0, share = 0, balance = 0;
  if (counts != nullptr) {
    balance = a.balance / static_cast<float>(
                              a.k * (a.lengths != nullptr ? a.lengths[sequence] : max(a.seq, a.positions)));
    for (int64_t e = lane; e < a.experts; e += kWarp) {
      total += score(e);
      share += static_cast<float>(counts[e]) * score(e);
    }
    total = warp_reduce(total, Add{});
    share = warp_reduce(share, Add{}) / total;
  }
  for (int64_t e = lane; e < a.experts; e += kWarp) {
    float ds = 0;
    for (int64_t i = 0; i < a.k; ++i)
      if (chosen[i] == e) ds = a.normalised ? a.scaling * (dgates[i] - mean) / sum : a.scaling * dgates[i];
    if (counts != nullptr) ds += balance * (static_cast<float>(counts[e]) - share) / total;
    put(static_cast<D*>(a.dlogits.data)[r * a.experts + e], ds * score(e) * (1.0f - score(e)));
  }
}

__global__ void count_all(CountChoicesArgs a) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < a.rows * a.k; i += stride) {
    const int32_t e = a.indices[i];
    if (e >= 0 && e < a.experts && !row_is_padding(a, i / a.k))
      atomicAdd(a.counts + (a.together ? 0 : (a.first_row + i / a.k) / a.seq * a.experts) + e, 1);
  }
}

/// One block: every thread sums all loads.
__global__ void update_bias(SelectionBiasArgs a) {
  int64_t total = 0;
  for (int64_t e = 0; e < a.experts; ++e) total += a.load[e];
  __syncthreads();
  const float speed = a.skip == nullptr || *a.skip == 0 ? a.speed : 0.0f;
  for (int64_t e = threadIdx.x; e < a.experts; e += blockDim.x) {
    const int64_t missing = total - a.experts * a.load[e];
    if (missing != 0) a.bias[e] += missing > 0 ? speed : -speed;
    a.load[e] = 0;
  }
}

}  // namespace

void route_in_groups(ExecutionContext& context, const GroupRouteArgs& a) {
  if (a.experts > kMostExperts)
    throw NotSupported(
        "route_in_groups: on a GPU a row chooses among at most 8192 experts; use the CPU for more");
  const int64_t rows = std::clamp<int64_t>(kMostExperts / a.experts, 1, kMostRows);
  const Grid grid{dim3(static_cast<unsigned>((a.rows + rows - 1) / rows)),
                  dim3(static_cast<unsigned>(rows * kWarp)),
                  static_cast<size_t>(rows * a.experts) * sizeof(float)};
  if (a.rows == 0) return;
  with_f32_bf16(a.logits.dtype, [&](auto type) {
    launch(context, "route_in_groups", route_rows_in_groups<decltype(type)>, grid, a);
  });
}

void route_in_groups_backward(ExecutionContext& context, const GroupRouteArgs& a) {
  if (a.rows == 0) return;
  const Grid grid{dim3(static_cast<unsigned>((a.rows + kMostRows - 1) / kMostRows)), dim3(kMostRows * kWarp)};
  with_f32_bf16(a.logits.dtype, [&](auto type) {
    with_f32_bf16(a.dlogits.dtype, [&](auto gradient) {
      launch(context, "route_in_groups_backward",
             route_rows_in_groups_backward<decltype(type), decltype(gradient)>, grid, a);
    });
  });
}

void count_choices(ExecutionContext& context, const CountChoicesArgs& a) {
  if (a.rows == 0) return;
  launch(context, "count_choices", count_all, Grid{dim3(blocks_of(a.rows * a.k, 256, 132 * 8)), dim3(256)},
         a);
}

void update_selection_bias(ExecutionContext& context, const SelectionBiasArgs& a) {
  launch(context, "update_selection_bias", update_bias, Grid{dim3(1), dim3(256)}, a);
}

}  // namespace sherd::cuda
