#include <cmath>
#include <string>
#include <type_traits>

#include <sherd/kernels/device/cuda/block_reduce.h>
#include <sherd/kernels/device/cuda/launch.h>
#include <sherd/kernels/device/cuda/vector.h>
#include <sherd/nn/kernels/attention/cached_attention.h>

// A block has one query head of one new row; its warps take the keys in turns, each with a softmax of its own
// that is corrected as larger scores appear, and are joined at the end in their order. A lane holds every
// 32nd component of a head. Every key is read once per query head, which the cache of the chip makes once per
// group.

namespace sherd::cuda {
namespace {

constexpr int kWarps = 8;
constexpr float kLog2e = 1.4426950408889634f;

/// exp2 of a difference from the largest score so far; where that is -infinity nothing has been seen.
__device__ __forceinline__ float relative(float score, float most) {
  return exp2f(score - (most == -INFINITY ? 0 : most));
}

template <class T, int kPerLane>
__global__ void __launch_bounds__(kWarps* kWarp)
    cached_attention_kernel(CachedAttentionArgs a, float scale_log2) {
  __shared__ float values[kWarps][kPerLane * kWarp];
  __shared__ float maxima[kWarps], sums[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int dim = static_cast<int>(a.head_dim);
  const int64_t row = blockIdx.x / a.heads, head = blockIdx.x % a.heads;
  const int64_t stride = a.kv_heads * a.head_dim, column = head / (a.heads / a.kv_heads) * a.head_dim;
  const int64_t keys = a.length + row + 1, first = a.window > 0 && keys > a.window ? keys - a.window : 0;
  const T* const q = static_cast<const T*>(a.q.data) + row * a.q_stride + head * a.head_dim;
  const T* const k = static_cast<const T*>(a.k.data) + column;
  const T* const v = static_cast<const T*>(a.v.data) + column;

  float query[kPerLane], o[kPerLane] = {};
#pragma unroll
  for (int e = 0; e < kPerLane; ++e) {
    const int d = lane + e * kWarp;
    query[e] = d < dim ? to_float(q[d]) * scale_log2 : 0;
  }
  float max = -INFINITY, sum = 0;
  for (int64_t j = first + warp; j < keys; j += kWarps) {
    float score = 0;
#pragma unroll
    for (int e = 0; e < kPerLane; ++e) {
      const int d = lane + e * kWarp;
      if (d < dim) score = fmaf(query[e], to_float(k[j * stride + d]), score);
    }
    score = warp_reduce(score, Add{});
    const float most = fmaxf(max, score);
    const float correction = relative(max, most), p = relative(score, most);
    max = most;
    sum = fmaf(sum, correction, p);
#pragma unroll
    for (int e = 0; e < kPerLane; ++e) {
      const int d = lane + e * kWarp;
      if (d < dim) o[e] = fmaf(o[e], correction, p * to_float(v[j * stride + d]));
    }
  }
  if (lane == 0) {
    maxima[warp] = max;
    sums[warp] = sum;
  }
#pragma unroll
  for (int e = 0; e < kPerLane; ++e) values[warp][lane + e * kWarp] = o[e];
  __syncthreads();

  const float sink = a.sinks == nullptr ? -INFINITY : a.sinks[head] * kLog2e;
  float most = sink;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) most = fmaxf(most, maxima[w]);
  float total = relative(sink, most);
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total = fmaf(sums[w], relative(maxima[w], most), total);
  T* const out = static_cast<T*>(a.out.data) + (row * a.heads + head) * a.head_dim;
  for (int d = static_cast<int>(threadIdx.x); d < dim; d += kWarps * kWarp) {
    float value = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) value = fmaf(values[w][d], relative(maxima[w], most), value);
    put(out[d], value / total);
  }
}

}  // namespace

void cached_attention(ExecutionContext& context, const CachedAttentionArgs& a) {
  const int64_t blocks = a.rows * a.heads;
  if (blocks == 0 || a.head_dim == 0) return;
  if (a.head_dim > 256)
    throw NotSupported("cached_attention: head_dim " + std::to_string(a.head_dim) +
                       "; CUDA kernels take at most 256, use more heads");
  if (blocks > INT32_MAX)
    throw NotSupported("cached_attention: " + std::to_string(a.rows) + " rows of " + std::to_string(a.heads) +
                       " heads are more than a grid of 2^31 blocks; split the rows");
  const float scale_log2 = kLog2e / std::sqrt(static_cast<float>(a.head_dim));
  with_f32_bf16(a.q.dtype, [&](auto type) {
    const auto start = [&](auto per_lane) {
      launch(context, "cached_attention", cached_attention_kernel<decltype(type), per_lane()>,
             Grid{dim3(static_cast<unsigned>(blocks)), dim3(kWarps * kWarp)}, a, scale_log2);
    };
    if (a.head_dim <= 64) return start(std::integral_constant<int, 2>{});
    if (a.head_dim <= 128) return start(std::integral_constant<int, 4>{});
    start(std::integral_constant<int, 8>{});
  });
}

}  // namespace sherd::cuda
