#include <sherd/kernels/qk_clip/qk_clip.h>

#include <sherd/kernels/device/cuda/segments.h>
#include <sherd/kernels/rest/cuda_forms.h>

// The same fp32 operations as the reference, each rounded by itself.

namespace sherd::cuda {
namespace {

__device__ float gamma_of(const QkClipArgs& a, int64_t h) {
  const float s = a.maxima[h];
  return s > a.tau && isfinite(s) ? __fdiv_rn(a.tau, s) : 1.0f;
}

/// One thread for each key head.
__global__ void find_factors(QkClipArgs a) {
  const bool skips = a.skip != nullptr && *a.skip != 0;
  const int64_t group = a.heads / a.kv_heads;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t g = first; g < a.kv_heads; g += int64_t{gridDim.x} * blockDim.x) {
    float least = 1;
    for (int64_t h = g * group; h < (g + 1) * group; ++h) least = fminf(least, skips ? 1.0f : gamma_of(a, h));
    const float key = __fsqrt_rn(least);
    a.key[g] = key;
    for (int64_t h = g * group; h < (g + 1) * group; ++h)
      a.query[h] = __fdiv_rn(skips ? 1.0f : gamma_of(a, h), key);
  }
}

struct Nothing {
  __device__ bool nothing_to_do() const { return false; }
};

template <class W>
struct ScaleHead {
  static constexpr int kVec = 4;
  static constexpr bool kDraws = W::kDraws;
  W x;
  const float* factor;
  KeptNoise<kDraws> noise;

  Cover cover_of(int64_t count) const { return cover<kVec>(count, x.bound(), x.low_bound()); }

  template <int N>
  __device__ void run(int64_t i, const Nothing&) const {
    const float f = *factor;
    if (f == 1) return;
    Vec<float, N> v = x.template get<N>(i);
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = __fmul_rn(v[k], f);
    x.put(i, v, noise.template draw<N>(i), NoiseUse::weight);
  }
};

void qk_clip_factors(ExecutionContext& context, const QkClipArgs& a) {
  launch(context, "qk_clip_factors", find_factors, Grid{dim3(blocks_of(a.kv_heads, 128, 132)), dim3(128)}, a);
}

void scale_heads(ExecutionContext& context, const HeadScaleArgs& a) {
  with_weights(a.form, [&](auto weights) {
    using Op = ScaleHead<decltype(weights(nullptr, nullptr))>;
    for_segments<Op>(context, "scale_heads", a.segments, Nothing{}, [&](const HeadScaleSegment& s) {
      return Op{weights(s.x, s.low), s.factor, KeptNoise<Op::kDraws>{s.noise}};
    });
  });
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const QkClipKernels* QkClipKernels::cuda() {
  static constexpr QkClipKernels table{.qk_clip_factors = cuda::qk_clip_factors,
                                       .scale_heads = cuda::scale_heads};
  return &table;
}

}  // namespace sherd
