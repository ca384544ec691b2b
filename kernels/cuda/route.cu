#include <sherd/kernels/ops/experts.h>

#include "cuda.h"
#include "rows.h"

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

/// The largest of a row's logits, `but` left out, as if found by a scan that moves on to what is larger: a
/// NaN stays where the scan begins and is passed over elsewhere.
template <class T>
__device__ int64_t largest(const T* row, int64_t experts, int64_t but, int lane) {
  const int64_t begin = but == 0 ? 1 : 0;
  Candidate best{-INFINITY, INT64_MAX};
  for (int64_t e = lane; e < experts; e += kWarp) {
    if (e == but) continue;
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

template <class T>
__global__ void __launch_bounds__(kRows* kWarp) route_rows(RouteArgs a) {
  const int64_t r = row_of_warp();
  if (r >= a.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const T* row = static_cast<const T*>(a.logits.data) + r * a.experts;
  int32_t* chosen = a.indices + r * a.k;
  float* gates = static_cast<float*>(a.gates.data) + r * a.k;
  const int64_t first = largest(row, a.experts, -1, lane);
  if (a.k == 1) {
    const Shift shift = shift_of(row, a.experts, lane);
    if (lane == 0) {
      chosen[0] = static_cast<int32_t>(first);
      gates[0] = expf(to_float(row[first]) - shift.top) * shift.scale;
    }
    return;
  }
  const int64_t second = largest(row, a.experts, first, lane);
  if (lane == 0) {
    chosen[0] = static_cast<int32_t>(first);
    chosen[1] = static_cast<int32_t>(second);
    gates[0] = first_of_two(to_float(row[first]), to_float(row[second]));
    gates[1] = 1.0f - gates[0];
  }
}

template <class T, class D>
__global__ void __launch_bounds__(kRows* kWarp) route_rows_backward(RouteArgs a) {
  const int64_t r = row_of_warp();
  if (r >= a.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const T* row = static_cast<const T*>(a.logits.data) + r * a.experts;
  D* out = static_cast<D*>(a.dlogits.data) + r * a.experts;
  const int32_t* chosen = a.indices + r * a.k;
  const float* dgates = static_cast<const float*>(a.dgates.data) + r * a.k;

  float slope = 0;  // of the first of two; the second has its negative
  if (a.k == 2) {
    const auto logit = [&](int32_t e) { return e >= 0 && e < a.experts ? to_float(row[e]) : NAN; };
    const float first = first_of_two(logit(chosen[0]), logit(chosen[1]));
    slope = first * (1.0f - first) * (dgates[0] - dgates[1]);
  }
  const bool through_softmax = a.k == 1 || a.counts != nullptr;
  const Shift shift = through_softmax ? shift_of(row, a.experts, lane) : Shift{0, 0};
  const auto p = [&](int64_t e) { return expf(to_float(row[e]) - shift.top) * shift.scale; };
  const auto dp = [&](int64_t e) {
    return (a.counts == nullptr ? 0.0f : a.balance * static_cast<float>(a.counts[e])) +
           (a.k == 1 && e == chosen[0] ? dgates[0] : 0.0f);
  };
  float mean = 0;
  if (through_softmax) {
    for (int64_t e = lane; e < a.experts; e += kWarp) mean += p(e) * dp(e);
    mean = warp_reduce(mean, Add{});
  }
  __syncwarp();  // dlogits may be logits: the chosen ones have been read
  for (int64_t e = lane; e < a.experts; e += kWarp) {
    float d = through_softmax ? p(e) * (dp(e) - mean) : 0.0f;
    if (a.k == 2 && e == chosen[0]) d += slope;
    if (a.k == 2 && e == chosen[1]) d -= slope;
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
