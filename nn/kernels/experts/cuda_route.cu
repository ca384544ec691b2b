#include <sherd/nn/kernels/experts/experts.h>

#include <sherd/kernels/device/cuda/rows.h>

#include "cuda_padding.h"

// A warp works on a row, its lanes on experts lane, lane + 32, ...
namespace sherd::cuda {
namespace {

constexpr int kRows = 8;  // of a block

__device__ int64_t row_of_warp() { return int64_t{blockIdx.x} * kRows + threadIdx.x / kWarp; }

Grid grid_of_warps(int64_t rows) {
  return {dim3(static_cast<unsigned>((rows + kRows - 1) / kRows)), dim3(kRows * kWarp)};
}

struct Candidate {
  float value;
  int64_t index;
};

__device__ Candidate better(const Candidate& a, const Candidate& b) {
  return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}

/// The largest of a row's logits, the `count` that are chosen left out, as if found by a scan that moves on to what is
/// larger: a NaN stays where the scan begins and is passed over elsewhere.
template <class T>
__device__ int64_t largest(const T* row, int64_t experts, const int32_t* chosen, int64_t count, int lane) {
  const auto taken = [&](int64_t e) {
    for (int64_t i = 0; i < count; ++i)
      if (chosen[i] == e) return true;
    return false;
  };
  int64_t begin = 0;
  while (taken(begin)) ++begin;
  Candidate best{-INFINITY, INT64_MAX};
  for (int64_t e = lane; e < experts; e += kWarp) {
    if (taken(e)) continue;
    const float v = to_float(row[e]);
    best = better(best, {isnan(v) ? (e == begin ? INFINITY : -INFINITY) : v, e});
  }
  for (int step = kWarp / 2; step > 0; step /= 2)
    best = better(
        best, {__shfl_xor_sync(kAllLanes, best.value, step), __shfl_xor_sync(kAllLanes, best.index, step)});
  return best.index;
}

/// softmax(row)[e] is exp(row[e] - top) * scale.
struct Shift {
  float top, scale;
};

template <class T>
__device__ Shift shift_of(const T* row, int64_t experts, int lane) {
  float top = -INFINITY, total = 0;
  for (int64_t e = lane; e < experts; e += kWarp) top = fmaxf(top, to_float(row[e]));
  top = warp_reduce(top, Max{});
  for (int64_t e = lane; e < experts; e += kWarp) total += expf(to_float(row[e]) - top);
  return {top, 1.0f / warp_reduce(total, Add{})};
}

/// The gate of the first of two experts, from their logits alone: exact also where both probabilities vanish.
__device__ float first_of_two(float first, float second) { return 1.0f / (1.0f + expf(second - first)); }

/// Returns the total that turns the chosen logits into normalised gates: gate i is normalised(i) =
/// exp(logit[i] - logit[0]) / total.
template <class T>
__device__ float total_of_chosen(const T* row, int64_t experts, const int32_t* chosen, int64_t k) {
  const auto logit = [&](int32_t e) { return e >= 0 && e < experts ? to_float(row[e]) : NAN; };
  float total = 1;
  for (int64_t i = 1; i < k; ++i) total += expf(logit(chosen[i]) - logit(chosen[0]));
  return total;
}

template <class T>
__global__ void __launch_bounds__(kRows* kWarp) route_rows(RouteArgs a) {
  __shared__ int32_t all_chosen[kRows][ops::kMostExpertsOfARow];
  const int64_t r = row_of_warp();
  if (r >= a.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int32_t* chosen = all_chosen[threadIdx.x / kWarp];
  const T* row = static_cast<const T*>(a.logits.data) + r * a.experts;
  float* gates = static_cast<float*>(a.gates.data) + r * a.k;
  for (int64_t i = 0; i < a.k; ++i) {
    const int64_t e = largest(row, a.experts, chosen, i, lane);
    if (lane == 0) {
      chosen[i] = static_cast<int32_t>(e);
      a.indices[r * a.k + i] = static_cast<int32_t>(e);
    }
    __syncwarp();
  }
  if (!a.normalised) {
    const Shift shift = shift_of(row, a.experts, lane);
    for (int64_t i = lane; i < a.k; i += kWarp)
      gates[i] = expf(to_float(row[chosen[i]]) - shift.top) * shift.scale;
    return;
  }
  if (a.k == 2) {
    if (lane == 0) {
      gates[0] = first_of_two(to_float(row[chosen[0]]), to_float(row[chosen[1]]));
      gates[1] = 1.0f - gates[0];
    }
    return;
  }
  const float total = total_of_chosen(row, a.experts, chosen, a.k);
  for (int64_t i = lane; i < a.k; i += kWarp)
    gates[i] = i == 0 ? 1.0f / total : expf(to_float(row[chosen[i]]) - to_float(row[chosen[0]])) / total;
}

/// Choices of expert e over all layers.
__device__ float count_of(const RouteArgs& a, int64_t e) {
  int64_t sum = 0;
  for (int64_t l = 0; l < a.layers; ++l) sum += a.counts[l * a.experts + e];
  return static_cast<float>(sum);
}

/// The factor of counts and probabilities in RouteArgs' balancing term.
__device__ float balance_of(const RouteArgs& a) {
  int64_t choices = 0;
  for (int64_t e = 0; e < a.experts; ++e) choices += a.counts[a.layer * a.experts + e];
  const auto layers = static_cast<float>(a.layers);
  return a.balance / (static_cast<float>(max(int64_t{1}, choices / a.k)) * layers * layers);
}

template <class T, class D>
__global__ void __launch_bounds__(kRows* kWarp) route_rows_backward(RouteArgs a) {
  __shared__ float all_slopes[kRows][ops::kMostExpertsOfARow];
  const int64_t r = row_of_warp();
  if (r >= a.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float* slope = all_slopes[threadIdx.x / kWarp];  // of the chosen ones, normalised
  const T* row = static_cast<const T*>(a.logits.data) + r * a.experts;
  D* out = static_cast<D*>(a.dlogits.data) + r * a.experts;
  const int32_t* chosen = a.indices + r * a.k;
  const float* dgates = static_cast<const float*>(a.dgates.data) + r * a.k;

  const auto logit = [&](int32_t e) { return e >= 0 && e < a.experts ? to_float(row[e]) : NAN; };
  if (a.normalised && lane == 0) {
    if (a.k == 2) {
      const float first = first_of_two(logit(chosen[0]), logit(chosen[1]));
      slope[0] = first * (1.0f - first) * (dgates[0] - dgates[1]);
      slope[1] = -slope[0];
    } else {
      const float total = total_of_chosen(row, a.experts, chosen, a.k);
      float mean_slope = 0;
      for (int64_t i = 0; i < a.k; ++i) {
        slope[i] = i == 0 ? 1.0f / total : expf(logit(chosen[i]) - logit(chosen[0])) / total;
        mean_slope += slope[i] * dgates[i];
      }
      for (int64_t i = 0; i < a.k; ++i) slope[i] *= dgates[i] - mean_slope;
    }
  }
  const auto slot_of = [&](int64_t e) {
    int64_t i = 0;
    while (i < a.k && chosen[i] != e) ++i;
    return i;
  };
  const bool balanced = a.counts != nullptr && !row_is_padding(a, r);
  const float balance = balanced ? balance_of(a) : 0.0f;
  const bool through_softmax = !a.normalised || balanced;
  const Shift shift = through_softmax ? shift_of(row, a.experts, lane) : Shift{0, 0};
  const auto p = [&](int64_t e) { return expf(to_float(row[e]) - shift.top) * shift.scale; };
  const auto dp = [&](int64_t e) {
    const int64_t slot = a.normalised ? a.k : slot_of(e);
    return (balanced ? balance * count_of(a, e) : 0.0f) + (slot < a.k ? dgates[slot] : 0.0f);
  };
  float mean = 0;
  if (through_softmax) {
    for (int64_t e = lane; e < a.experts; e += kWarp) mean += p(e) * dp(e);
    mean = warp_reduce(mean, Add{});
  }
  __syncwarp();  // dlogits may be logits: the chosen ones have been read
  for (int64_t e = lane; e < a.experts; e += kWarp) {
    float d = through_softmax ? p(e) * (dp(e) - mean) : 0.0f;
    if (const int64_t slot = a.normalised ? slot_of(e) : a.k; slot < a.k) d += slope[slot];
    put(out[e], d);
  }
}

}  // namespace

void route_top_k(ExecutionContext& context, const RouteArgs& a) {
  with_f32_bf16(a.logits.dtype, [&](auto type) {
    launch(context, "route_top_k", route_rows<decltype(type)>, grid_of_warps(a.rows), a);
  });
}

void route_top_k_backward(ExecutionContext& context, const RouteArgs& a) {
  with_f32_bf16(a.logits.dtype, [&](auto type) {
    with_f32_bf16(a.dlogits.dtype, [&](auto gradient) {
      launch(context, "route_top_k_backward", route_rows_backward<decltype(type), decltype(gradient)>,
             grid_of_warps(a.rows), a);
    });
  });
}

}  // namespace sherd::cuda
