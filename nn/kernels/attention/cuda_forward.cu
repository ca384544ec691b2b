#include <sherd/nn/kernels/attention/attention.h>

#include "cuda_attention.h"
#include "cuda_cudnn.h"
#include "cuda_tiles.h"

// FlashAttention-2 (Dao 2023): a block owns a tile of query rows, keys and values stream by, the softmax is
// corrected as larger scores appear. Probabilities are rounded to bf16 before they meet the values; their sum
// is of the unrounded ones.

namespace sherd::cuda {

// cuda_backward.cu, cuda_cached.cu
void attention_backward(ExecutionContext&, const AttentionArgs&);
void cached_attention(ExecutionContext&, const CachedAttentionArgs&);

namespace {

template <int D>
struct Forward {
  static constexpr int M = 2, kRows = kWarps * 16 * M, kKeys = D <= 64 ? 64 : 32;
  static constexpr int kTile = kKeys * kStride<D>;
  static constexpr size_t kSharedBytes = (kRows * kStride<D> + 4 * kTile) * sizeof(__nv_bfloat16);
};

/// The largest score and the sum of exp(score - largest) of the rows of a warp; the sum is of this lane's
/// columns until finish().
template <int M>
struct Softmax {
  float max[M][2], sum[M][2];

  __device__ __forceinline__ Softmax() {
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) max[m][half] = -INFINITY, sum[m][half] = 0;
  }

  /// Turns raw scores into probabilities relative to the new maxima, to which it scales `o`.
  template <int N, int D>
  __device__ __forceinline__ void step(Block<M, N>& s, Block<M, D>& o, float scale_log2) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = max[m][half];
#pragma unroll
        for (int n = 0; n < N / 8; ++n) most = fmaxf(most, fmaxf(s[m][n][half * 2], s[m][n][half * 2 + 1]));
        most = warp_reduce(most, Max{}, 4);
        // A row that has seen only -inf counts from 0, lest inf - inf be NaN.
        const float origin = most == -INFINITY ? 0 : most * scale_log2;
        const float correction = fast_exp2(max[m][half] * scale_log2 - origin);
        max[m][half] = most;
        float total = 0;
#pragma unroll
        for (int n = 0; n < N / 8; ++n) {
#pragma unroll
          for (int i = half * 2; i < half * 2 + 2; ++i) {
            s[m][n][i] = fast_exp2(fmaf(s[m][n][i], scale_log2, -origin));
            total += s[m][n][i];
          }
        }
        sum[m][half] = sum[m][half] * correction + total;
        if (__any_sync(kAllLanes, correction != 1)) {
#pragma unroll
          for (int n = 0; n < D / 8; ++n) {
            o[m][n][half * 2] *= correction;
            o[m][n][half * 2 + 1] *= correction;
          }
        }
      }
    }
  }

  /// Divides `o` by the sums.
  template <int D>
  __device__ __forceinline__ void finish(Block<M, D>& o) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[m][half] = warp_reduce(sum[m][half], Add{}, 4);
        const float factor = 1 / sum[m][half];
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
          o[m][n][half * 2] *= factor;
          o[m][n][half * 2 + 1] *= factor;
        }
      }
    }
  }
};

template <int D, bool kBounded>
__global__ void __launch_bounds__(kTileThreads, 2)
    forward_kernel(Packing p, const __nv_bfloat16* qkv, __nv_bfloat16* out, float* lse, float* max_logits) {
  using F = Forward<D>;
  constexpr int M = F::M, N = F::kKeys;
  SHERD_DYNAMIC_SHARED(__nv_bfloat16, shared);
  Place place(p, F::kRows);
  place.tile = place.tiles - 1 - place.tile;  // the longest first
  const int first = place.tile * F::kRows, end = min(first + F::kRows, p.seq);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int own = first + warp * 16 * M;  // the warp's first row

  const auto k_rows = p.in(qkv, place.bh, 1), v_rows = p.in(qkv, place.bh, 2);
  __nv_bfloat16* const q = shared;
  __nv_bfloat16* const streamed = q + F::kRows * kStride<D>;
  auto load = [&](int t) {
    __nv_bfloat16* k = streamed + t % 2 * 2 * F::kTile;
    load_tile<N, D>(k, k_rows, t * N);
    load_tile<N, D>(k + F::kTile, v_rows, t * N);
  };
  const FirstKeys first_key = p.first_keys(place.bh);
  const int begin = kBounded ? first_key(first) / N : 0, own_begin = kBounded ? first_key(own) : 0,
            all_see =
                kBounded ? first_key(end - 1) : 0;  // the first key that all rows of the block see, or none
  load_tile<F::kRows, D>(q, p.in(qkv, place.bh, 0), first);
  load(begin);

  Block<M, D> o = {};
  Softmax<M> softmax;
  const float scale_log2 = p.scale * kLog2e;
  const int tiles = (end + N - 1) / N;
  for (int t = begin; t < tiles; ++t) {
    const __nv_bfloat16* k = streamed + t % 2 * 2 * F::kTile;
    __nv_bfloat16* v = streamed + t % 2 * 2 * F::kTile + F::kTile;
    const bool edge =
        t * N + N - 1 > first || (kBounded && t * N < all_see);  // some row of the block does not see all
    copies_done();
    const bool poisoned = __syncthreads_or(edge && copied_non_finite<N, D>(v)) != 0;
    if (t + 1 < tiles) load(t + 1);

    const int ahead = own - t * N;  // row i sees key j of the tile when j <= i + ahead
    auto sees = [ahead, t, own, first_key](int row, int j) {
      return j <= row + ahead && (!kBounded || t * N + j >= first_key(own + row));
    };
    const bool any = ahead > -16 * M && own < end && (!kBounded || own_begin < t * N + N);
    Left<M, N> probabilities;
    if (any) {
      Block<M, N> s = {};
      add_dots<M, N, D>(s, q + warp * 16 * M * kStride<D>, k);
      if (edge) for_each<M, N>(s, [&](float& x, int row, int j) { x = sees(row, j) ? x : -INFINITY; });
      softmax.template step<N, D>(s, o, scale_log2);
      probabilities = s;
    }
    if (poisoned) {
      if (any) add_non_finite<M, N, D>(o, v, sees);
      __syncthreads();
      zero_non_finite<N, D>(v);
      __syncthreads();
    }
    if (any) add_mixture<M, N, D>(o, probabilities, v);
  }
  if (own >= end) return;

  softmax.template finish<D>(o);
  store_rows<M, D>(p.out(out, place.bh), own, o, q + warp * 16 * M * kStride<D>);
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = own + m * 16 + half * 8 + lane / 4;
      if (lane % 4 == 0 && row < end)
        lse[int64_t{place.bh} * p.seq + row] = softmax.max[m][half] * p.scale + logf(softmax.sum[m][half]);
    }
  }
  if (max_logits == nullptr) return;
  float most = -INFINITY;
  const int counted = p.counted(place.bh);
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (own + m * 16 + half * 8 + lane / 4 < counted) most = fmaxf(most, softmax.max[m][half]);
  most = warp_reduce(most, Max{});
  if (lane == 0) raise_max_logit(max_logits, p, place.bh, most * p.scale);
}

void attention_forward(ExecutionContext& context, const AttentionArgs& a) {
  const char* what = "attention_forward";
  if (is_empty(a)) return;
  if (!on_tensor_cores(what, a)) return plain_attention_forward(context, a);
  if (cudnn_forward(context, a)) return;
  with_width(a, [&](auto width, auto bounded) {
    using F = Forward<width()>;
    launch(context, what, forward_kernel<width(), bounded()>,
           tiles_of(what, a, a.heads, F::kRows, kTileThreads, F::kSharedBytes), Packing(a, __nv_bfloat16{}),
           a.qkv.as<const __nv_bfloat16>(), a.out.as<__nv_bfloat16>(), a.lse, a.max_logits);
  });
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const AttentionKernels* AttentionKernels::cuda() {
  static constexpr AttentionKernels table{
      .attention_forward = cuda::attention_forward,
      .attention_backward = cuda::attention_backward,
      .cached_attention = cuda::cached_attention,
  };
  return &table;
}

}  // namespace sherd
