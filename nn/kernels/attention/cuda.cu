#include <sherd/kernels/device/cuda/block_reduce.h>

#include "cuda_attention.h"

// Attention in plain fp32 arithmetic, nothing rounded in between: f32, and bf16 heads too wide for the tensor
// cores' kernels. 16 x 16 threads; thread (y, x) of a product holds rows y + 16 i and columns x + 16 j, or,
// of something D wide, columns 64 g + 4 x. The three kernels are those of attention_forward.cu and
// attention_backward.cu.

namespace sherd::cuda {
namespace {

constexpr int kThreads = 256;

// Floats and probabilities of a row in shared memory, with padding against bank conflicts.
template <int D>
constexpr int kStride = D + 4;

template <int R, int D>
struct Wide {  // R rows, D columns
  float4 at[R / 16][D / 64] = {};

  __device__ __forceinline__ void scale(int i, float factor) {
#pragma unroll
    for (float4& v : at[i]) v.x *= factor, v.y *= factor, v.z *= factor, v.w *= factor;
  }
};

__device__ __forceinline__ int thread_x() { return static_cast<int>(threadIdx.x) % 16; }
__device__ __forceinline__ int thread_y() { return static_cast<int>(threadIdx.x) / 16; }

/// Rows [first, first + N) as floats; those outside are 0.
template <int N, int D, class T>
__device__ void load_tile(float* tile, const Rows<const T>& m, int first) {
  constexpr int kCount = 16 / sizeof(T);
  for (int i = static_cast<int>(threadIdx.x); i < N * D / kCount; i += kThreads) {
    const int row = i / (D / kCount), column = i % (D / kCount) * kCount;
    const auto some =
        load_some(m.row(first + row) + column, first + row < m.count ? m.width - column : 0, m.vectors);
#pragma unroll
    for (int e = 0; e < kCount; e += 4)
      *reinterpret_cast<float4*>(tile + row * kStride<D> + column + e) =
          make_float4(to_float(some[e]), to_float(some[e + 1]), to_float(some[e + 2]), to_float(some[e + 3]));
  }
}

/// c = a b^T of R rows of `a` and N rows of `b`.
template <int R, int N, int D>
__device__ __forceinline__ void dots(float (&c)[R / 16][N / 16], const float* a, const float* b) {
#pragma unroll
  for (int i = 0; i < R / 16; ++i)
#pragma unroll
    for (int j = 0; j < N / 16; ++j) c[i][j] = 0;
#pragma unroll 2
  for (int d = 0; d < D; d += 4) {
    float4 left[R / 16];
#pragma unroll
    for (int i = 0; i < R / 16; ++i)
      left[i] = *reinterpret_cast<const float4*>(a + (thread_y() + 16 * i) * kStride<D> + d);
#pragma unroll
    for (int j = 0; j < N / 16; ++j) {
      const float4 right = *reinterpret_cast<const float4*>(b + (thread_x() + 16 * j) * kStride<D> + d);
#pragma unroll
      for (int i = 0; i < R / 16; ++i) {
        c[i][j] = fmaf(left[i].x, right.x, c[i][j]);
        c[i][j] = fmaf(left[i].y, right.y, c[i][j]);
        c[i][j] = fmaf(left[i].z, right.z, c[i][j]);
        c[i][j] = fmaf(left[i].w, right.w, c[i][j]);
      }
    }
  }
}

template <int R, int N>
__device__ __forceinline__ void publish(float* p, const float (&c)[R / 16][N / 16]) {
#pragma unroll
  for (int i = 0; i < R / 16; ++i)
#pragma unroll
    for (int j = 0; j < N / 16; ++j) p[(thread_y() + 16 * i) * kStride<N> + thread_x() + 16 * j] = c[i][j];
}

/// c += p b of the N rows of `b`. Pairs with sees(row, j) false are left out, so that a non-finite value
/// reaches only the rows that attend to it.
template <int R, int N, int D, class Sees>
__device__ __forceinline__ void add_mixture(Wide<R, D>& c, const float* p, const float* b, Sees sees) {
#pragma unroll 4
  for (int j = 0; j < N; ++j) {
    float4 right[D / 64];
#pragma unroll
    for (int g = 0; g < D / 64; ++g)
      right[g] = *reinterpret_cast<const float4*>(b + j * kStride<D> + 64 * g + 4 * thread_x());
#pragma unroll
    for (int i = 0; i < R / 16; ++i) {
      const int row = thread_y() + 16 * i;
      const float left = p[row * kStride<N> + j];
      if (!sees(row, j)) continue;
#pragma unroll
      for (int g = 0; g < D / 64; ++g) {
        float4& sum = c.at[i][g];
        sum.x = fmaf(left, right[g].x, sum.x);
        sum.y = fmaf(left, right[g].y, sum.y);
        sum.z = fmaf(left, right[g].z, sum.z);
        sum.w = fmaf(left, right[g].w, sum.w);
      }
    }
  }
}

/// The same; tests sees() only where some pair of the tile is left out.
template <int R, int N, int D, class Sees>
__device__ __forceinline__ void add_mixture(Wide<R, D>& c, const float* p, const float* b, bool edge,
                                            Sees sees) {
  if (edge)
    add_mixture<R, N, D>(c, p, b, sees);
  else
    add_mixture<R, N, D>(c, p, b, [](int, int) { return true; });
}

template <int R, int D, class T>
__device__ __forceinline__ void store_rows(const Rows<T>& m, int first, const Wide<R, D>& c) {
#pragma unroll
  for (int i = 0; i < R / 16; ++i) {
    const int row = first + thread_y() + 16 * i;
    if (row >= m.count) continue;
#pragma unroll
    for (int g = 0; g < D / 64; ++g) {
      const float values[] = {c.at[i][g].x, c.at[i][g].y, c.at[i][g].z, c.at[i][g].w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = 64 * g + 4 * thread_x() + e;
        if (column < m.width) put(m.row(row)[column], values[e]);
      }
    }
  }
}

constexpr int kRowThreads = 16;  // neighbours, that hold a row

/// Rows that a block owns and rows of the tiles that stream by.
template <int D>
struct Forward {
  static constexpr int R = D <= 128 ? 64 : 32, N = R;
  static constexpr size_t kSharedBytes = ((R + N) * kStride<D> + R * kStride<N>)*sizeof(float);
};
template <int D>
struct Backward {
  static constexpr int R = D <= 128 ? 64 : 32, N = D <= 64 ? 64 : 32;
  static constexpr size_t kSharedBytes = ((R + N) * 2 * kStride<D> + R * kStride<N>)*sizeof(float);
};

template <class T, int D, bool kBounded>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(Packing p, const T* qkv, T* out, float* lse, float* max_logits) {
  constexpr int R = Forward<D>::R, N = Forward<D>::N;
  SHERD_DYNAMIC_SHARED(float, q);
  float *const kv = q + R * kStride<D>, *const weights = kv + N * kStride<D>;
  Place place(p, R);
  place.tile = place.tiles - 1 - place.tile;  // the longest first
  const int first = place.tile * R, end = min(first + R, p.seq);
  const auto k_rows = p.in(qkv, place.bh, 1), v_rows = p.in(qkv, place.bh, 2);
  const float scale_log2 = p.scale * kLog2e;
  const FirstKeys first_key = p.first_keys(place.bh);
  const int all_see =
      kBounded ? first_key(end - 1) : 0;  // the first key that all rows of the block see, or none
  load_tile<R, D>(q, p.in(qkv, place.bh, 0), first);

  Wide<R, D> o;
  float max[R / 16], sum[R / 16] = {};  // sum: of this thread's columns
#pragma unroll
  for (float& m : max) m = -INFINITY;
  for (int begin = kBounded ? first_key(first) / N * N : 0; begin < end; begin += N) {
    const bool edge = begin + N - 1 > first || begin < all_see;  // some row of the block does not see all
    auto sees = [&](int row, int j) {
      return begin + j <= first + row && (!kBounded || begin + j >= first_key(first + row));
    };
    __syncthreads();
    load_tile<N, D>(kv, k_rows, begin);
    __syncthreads();
    float s[R / 16][N / 16];
    dots<R, N, D>(s, q, kv);
#pragma unroll
    for (int i = 0; i < R / 16; ++i) {
      float most = max[i];
#pragma unroll
      for (int j = 0; j < N / 16; ++j) {
        if (edge && !sees(thread_y() + 16 * i, thread_x() + 16 * j)) s[i][j] = -INFINITY;
        most = fmaxf(most, s[i][j]);
      }
      most = warp_reduce(most, Max{}, kRowThreads);
      // A row that has seen only -inf counts from 0, lest inf - inf be NaN.
      const float origin = most == -INFINITY ? 0 : most * scale_log2;
      const float correction = exp2f(max[i] * scale_log2 - origin);
      max[i] = most;
      sum[i] *= correction;
      o.scale(i, correction);
#pragma unroll
      for (int j = 0; j < N / 16; ++j) {
        s[i][j] = exp2f(fmaf(s[i][j], scale_log2, -origin));
        sum[i] += s[i][j];
      }
    }
    publish<R, N>(weights, s);
    __syncthreads();
    load_tile<N, D>(kv, v_rows, begin);
    __syncthreads();
    add_mixture<R, N, D>(o, weights, kv, edge, sees);
  }
  float most = -INFINITY;  // of the rows of this thread
  const int counted = p.counted(place.bh);
#pragma unroll
  for (int i = 0; i < R / 16; ++i) {
    const float total = warp_reduce(sum[i], Add{}, kRowThreads);
    const int row = first + thread_y() + 16 * i;
    o.scale(i, 1 / total);
    if (row < counted) most = fmaxf(most, max[i]);
    if (thread_x() == 0 && row < end) lse[int64_t{place.bh} * p.seq + row] = max[i] * p.scale + logf(total);
  }
  if (max_logits != nullptr) {
    most = warp_reduce(most, Max{});
    if (threadIdx.x % kWarp == 0) raise_max_logit(max_logits, p, place.bh, most * p.scale);
  }
  store_rows<R, D>(p.out(out, place.bh), first, o);
}

template <class T, int D, bool kBounded>
__global__ void __launch_bounds__(kThreads)
    queries_kernel(Packing p, const T* qkv, const T* dout, const RowStats* stats, int64_t padded, T* dqkv) {
  constexpr int R = Backward<D>::R, N = Backward<D>::N;
  SHERD_DYNAMIC_SHARED(float, q);
  float *const d = q + R * kStride<D>, *const k = d + R * kStride<D>, *const v = k + N * kStride<D>;
  float* const weights = v + N * kStride<D>;
  Place place(p, R);
  place.tile = place.tiles - 1 - place.tile;  // the longest first
  const int first = place.tile * R, end = min(first + R, p.seq);
  const auto k_rows = p.in(qkv, place.bh, 1), v_rows = p.in(qkv, place.bh, 2);
  const float scale_log2 = p.scale * kLog2e;
  const FirstKeys first_key = p.first_keys(place.bh);
  const int all_see =
      kBounded ? first_key(end - 1) : 0;  // the first key that all rows of the block see, or none
  load_tile<R, D>(q, p.in(qkv, place.bh, 0), first);
  load_tile<R, D>(d, p.out(dout, place.bh), first);
  stats += place.bh * padded + first;

  Wide<R, D> dq;
  for (int begin = kBounded ? first_key(first) / N * N : 0; begin < end; begin += N) {
    const bool edge = begin + N - 1 > first || begin < all_see;  // some row of the block does not see all
    auto sees = [&](int row, int j) {
      return begin + j <= first + row && (!kBounded || begin + j >= first_key(first + row));
    };
    __syncthreads();
    load_tile<N, D>(k, k_rows, begin);
    load_tile<N, D>(v, v_rows, begin);
    __syncthreads();
    float s[R / 16][N / 16], ds[R / 16][N / 16];
    dots<R, N, D>(s, q, k);
    dots<R, N, D>(ds, d, v);
#pragma unroll
    for (int i = 0; i < R / 16; ++i) {
      const RowStats stat = stats[thread_y() + 16 * i];
#pragma unroll
      for (int j = 0; j < N / 16; ++j)
        ds[i][j] = exp2f(fmaf(s[i][j], scale_log2, -stat.x)) * (ds[i][j] - stat.y);
    }
    publish<R, N>(weights, ds);
    __syncthreads();
    add_mixture<R, N, D>(dq, weights, k, edge, sees);
  }
#pragma unroll
  for (int i = 0; i < R / 16; ++i) dq.scale(i, p.scale);
  store_rows<R, D>(p.in(dqkv, place.bh, 0), first, dq);
}

/// dk and dv of a tile of a key head. Scores are held transposed: rows are keys, columns queries.
template <class T, int D, bool kBounded>
__global__ void __launch_bounds__(kThreads)
    keys_kernel(Packing p, const T* qkv, const T* dout, const RowStats* stats, int64_t padded, T* dqkv) {
  constexpr int R = Backward<D>::R, N = Backward<D>::N;
  SHERD_DYNAMIC_SHARED(float, k);
  float *const v = k + R * kStride<D>, *const q = v + R * kStride<D>, *const d = q + N * kStride<D>;
  float* const weights = d + N * kStride<D>;
  const Place place(p, R);  // of a key head; the first tiles are the longest
  const int first = place.tile * R, head = place.bh * p.group;  // head: the first query head of the group
  const FirstKeys first_key = p.first_keys(head);
  const int end = kBounded ? first_key.tiles_that_see<N>(first + R - 1, first / N, (p.seq + N - 1) / N) * N
                           : p.seq;  // of the queries
  const float scale_log2 = p.scale * kLog2e;
  load_tile<R, D>(k, p.in(qkv, head, 1), first);
  load_tile<R, D>(v, p.in(qkv, head, 2), first);

  Wide<R, D> dk, dv;
  for (int h = head; h < head + p.group; ++h) {
    const auto q_rows = p.in(qkv, h, 0);
    const auto d_rows = p.out(dout, h);
    const RowStats* const head_stats = stats + h * padded;
    for (int begin = first / N * N; begin < end; begin += N) {
      const bool edge = begin < first + R - 1 || (kBounded && first_key(begin + N - 1) > first);
      auto sees = [&](int row, int j) {
        return first + row <= begin + j && (!kBounded || first + row >= first_key(begin + j));
      };
      __syncthreads();
      load_tile<N, D>(q, q_rows, begin);
      load_tile<N, D>(d, d_rows, begin);
      __syncthreads();
      float s[R / 16][N / 16], ds[R / 16][N / 16];
      dots<R, N, D>(s, k, q);
      dots<R, N, D>(ds, v, d);
#pragma unroll
      for (int j = 0; j < N / 16; ++j) {
        const RowStats stat = head_stats[begin + thread_x() + 16 * j];
#pragma unroll
        for (int i = 0; i < R / 16; ++i) {
          s[i][j] = exp2f(fmaf(s[i][j], scale_log2, -stat.x));
          ds[i][j] = s[i][j] * (ds[i][j] - stat.y);
        }
      }
      publish<R, N>(weights, s);
      __syncthreads();
      add_mixture<R, N, D>(dv, weights, d, edge, sees);
      __syncthreads();
      publish<R, N>(weights, ds);
      __syncthreads();
      add_mixture<R, N, D>(dk, weights, q, edge, sees);
    }
  }
#pragma unroll
  for (int i = 0; i < R / 16; ++i) dk.scale(i, p.scale);
  store_rows<R, D>(p.in(dqkv, head, 1), first, dk);
  store_rows<R, D>(p.in(dqkv, head, 2), first, dv);
}

/// Calls call(T{}, constant, kBounded) with the least of 64, 128, 256 that holds a head.
template <class Call>
void with_kernel(const AttentionArgs& a, Call&& call) {
  const auto with = [&](auto type, auto width) {
    if (bounded(a)) return call(type, width, std::true_type{});
    call(type, width, std::false_type{});
  };
  if (a.qkv.dtype == DType::bf16) return with(__nv_bfloat16{}, std::integral_constant<int, 256>{});
  if (a.head_dim <= 64) return with(float{}, std::integral_constant<int, 64>{});
  if (a.head_dim <= 128) return with(float{}, std::integral_constant<int, 128>{});
  with(float{}, std::integral_constant<int, 256>{});
}

}  // namespace

void plain_attention_forward(ExecutionContext& context, const AttentionArgs& a) {
  with_kernel(a, [&](auto type, auto width, auto bounded) {
    using T = decltype(type);
    constexpr int D = width();
    const char* what = "attention_forward";
    launch(context, what, forward_kernel<T, D, bounded()>,
           tiles_of(what, a, a.heads, Forward<D>::R, kThreads, Forward<D>::kSharedBytes), Packing(a, type),
           a.qkv.as<const T>(), a.out.as<T>(), a.lse, a.max_logits);
  });
}

void plain_attention_backward(ExecutionContext& context, const AttentionArgs& a, const RowStats* stats) {
  with_kernel(a, [&](auto type, auto width, auto bounded) {
    using T = decltype(type);
    constexpr int D = width();
    const char* what = "attention_backward";
    const auto start = [&](auto kernel, int64_t heads) {
      launch(context, what, kernel,
             tiles_of(what, a, heads, Backward<D>::R, kThreads, Backward<D>::kSharedBytes), Packing(a, type),
             a.qkv.as<const T>(), a.dout.as<const T>(), stats, padded_rows(a.seq), a.dqkv.as<T>());
    };
    start(keys_kernel<T, D, bounded()>, a.kv_heads);
    start(queries_kernel<T, D, bounded()>, a.heads);
  });
}

}  // namespace sherd::cuda
