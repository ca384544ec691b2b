#include "cuda_attention.h"
#include "cuda_cudnn.h"
#include "cuda_tiles.h"

// Probabilities are computed again from the scores and lse. Two kernels, so that every sum has one owner and
// needs no atomics: a block of key rows collects dk and dv over the queries that see them, a block of query
// rows dq over the keys it sees. That is seven products of tiles where one kernel with atomics needs five.
// Probabilities p and ds = p * (dp - delta) are rounded to bf16 before the products that follow.

namespace sherd::cuda {
namespace {

/// Eight lanes per row of the padded rows of each head.
template <class T>
__global__ void stats_kernel(Packing p, int64_t padded, const T* out, const T* dout, const float* lse,
                             RowStats* stats) {
  const Place place(p, kStatsRows);
  const int row = place.tile * kStatsRows + static_cast<int>(threadIdx.x / 8);
  const int lane = static_cast<int>(threadIdx.x % 8);
  const bool inside = row < p.seq;
  float delta = 0;
  if (inside) {
    const Rows<const T> o = p.out(out, place.bh), d = p.out(dout, place.bh);
    const T *o_row = o.row(row), *d_row = d.row(row);
    constexpr int N = 16 / sizeof(T);
    for (int i = lane * N; i < p.width; i += 8 * N) {
      const auto x = load_some(o_row + i, p.width - i, p.vectors),
                 dx = load_some(d_row + i, p.width - i, p.vectors);
#pragma unroll
      for (int e = 0; e < N; ++e) delta = fmaf(to_float(x[e]), to_float(dx[e]), delta);
    }
  }
  delta = warp_reduce(delta, Add{}, 8);
  if (lane == 0)
    stats[place.bh * padded + row] =
        inside ? make_float2(lse[int64_t{place.bh} * p.seq + row] * kLog2e, delta) : make_float2(INFINITY, 0);
}

/// dq of a tile of query rows.
template <int D>
struct Queries {
  static constexpr int M = 2, kRows = kWarps * 16 * M, kKeys = D <= 64 ? 64 : 32;
  static constexpr int kOwned = kRows * kStride<D>, kTile = kKeys * kStride<D>;
  static constexpr size_t kSharedBytes =
      (2 * kOwned + 4 * kTile) * sizeof(__nv_bfloat16) + kRows * sizeof(RowStats);
};

template <int D, bool kBounded>
__global__ void __launch_bounds__(kTileThreads, 2)
    queries_kernel(Packing p, const __nv_bfloat16* qkv, const __nv_bfloat16* dout, const RowStats* stats,
                   int64_t padded, __nv_bfloat16* dqkv) {
  using S = Queries<D>;
  constexpr int M = S::M, N = S::kKeys;
  SHERD_DYNAMIC_SHARED(__nv_bfloat16, shared);
  Place place(p, S::kRows);
  place.tile = place.tiles - 1 - place.tile;  // the longest first
  const int first = place.tile * S::kRows, end = min(first + S::kRows, p.seq);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int own = first + warp * 16 * M;

  const auto k_rows = p.in(qkv, place.bh, 1), v_rows = p.in(qkv, place.bh, 2);
  __nv_bfloat16 *const q = shared, *const d = q + S::kOwned, *const streamed = d + S::kOwned;
  RowStats* const own_stats = reinterpret_cast<RowStats*>(streamed + 4 * S::kTile);
  __nv_bfloat16* const q_own = q + warp * 16 * M * kStride<D>;
  auto load = [&](int t) {
    __nv_bfloat16* k = streamed + t % 2 * 2 * S::kTile;
    load_tile<N, D>(k, k_rows, t * N);
    load_tile<N, D>(k + S::kTile, v_rows, t * N);
  };
  load_tile<S::kRows, D>(q, p.in(qkv, place.bh, 0), first);
  load_tile<S::kRows, D>(d, p.out(dout, place.bh), first);
  for (int i = 2 * static_cast<int>(threadIdx.x); i < S::kRows; i += 2 * kTileThreads)
    copy_async(own_stats + i, stats + place.bh * padded + first + i, first + i < padded);
  const FirstKeys first_key = p.first_keys(place.bh);
  const int begin = kBounded ? first_key(first) / N : 0, own_begin = kBounded ? first_key(own) : 0,
            all_see = kBounded ? first_key(end - 1) : 0;
  load(begin);

  Block<M, D> dq = {};
  const float scale_log2 = p.scale * kLog2e;
  const int tiles = (end + N - 1) / N;
  for (int t = begin; t < tiles; ++t) {
    __nv_bfloat16* k = streamed + t % 2 * 2 * S::kTile;
    const bool edge = t * N + N - 1 > first || (kBounded && t * N < all_see);
    copies_done();
    const bool poisoned = __syncthreads_or(edge && copied_non_finite<N, D>(k)) != 0;
    if (t + 1 < tiles) load(t + 1);

    const int ahead = own - t * N;  // row i sees key j of the tile when j <= i + ahead
    auto sees = [ahead, t, own, first_key](int row, int j) {
      return j <= row + ahead && (!kBounded || t * N + j >= first_key(own + row));
    };
    const bool any = ahead > -16 * M && own < end && (!kBounded || own_begin < t * N + N);
    Left<M, N> left_ds;
    if (any) {
      Block<M, N> s = {}, ds = {};
      add_dots<M, N, D>(s, q_own, k);
      add_dots<M, N, D>(ds, d + warp * 16 * M * kStride<D>, k + S::kTile);
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const RowStats stat = own_stats[warp * 16 * M + m * 16 + half * 8 + lane / 4];
#pragma unroll
          for (int n = 0; n < N / 8; ++n) {
#pragma unroll
            for (int i = half * 2; i < half * 2 + 2; ++i)
              ds[m][n][i] = fast_exp2(fmaf(s[m][n][i], scale_log2, -stat.x)) * (ds[m][n][i] - stat.y);
          }
        }
      }
      if (edge) for_each<M, N>(ds, [&](float& x, int row, int j) { x = sees(row, j) ? x : 0; });
      left_ds = ds;
    }
    if (poisoned) {
      __syncthreads();  // the scores are done with k
      if (any) add_non_finite<M, N, D>(dq, k, sees);
      __syncthreads();
      zero_non_finite<N, D>(k);
      __syncthreads();
    }
    if (any) add_mixture<M, N, D>(dq, left_ds, k);
  }
  if (own >= end) return;
  for_each<M, D>(dq, [&](float& x, int, int) { x *= p.scale; });
  store_rows<M, D>(p.in(dqkv, place.bh, 0), own, dq, q_own);
}

/// dk and dv of a tile of key rows, summed over the query heads that use them. Scores are held transposed: a warp's
/// rows are keys, its columns queries.
template <int D>
struct Keys {
  static constexpr int M = D <= 64 ? 2 : 1, kRows = kWarps * 16 * M, kQueries = D <= 64 ? 32 : 64;
  static constexpr int kOwned = kRows * kStride<D>, kTile = kQueries * kStride<D>;
  static constexpr size_t kSharedBytes =
      (2 * kOwned + 4 * kTile) * sizeof(__nv_bfloat16) + 2 * kQueries * sizeof(RowStats);
};

template <int D, bool kBounded>
__global__ void __launch_bounds__(kTileThreads, 2)
    keys_kernel(Packing p, const __nv_bfloat16* qkv, const __nv_bfloat16* dout, const RowStats* stats,
                int64_t padded, __nv_bfloat16* dqkv) {
  using S = Keys<D>;
  constexpr int M = S::M, N = S::kQueries;
  SHERD_DYNAMIC_SHARED(__nv_bfloat16, shared);
  const Place place(p, S::kRows);  // of a key head; the first tiles are the longest
  const int first = place.tile * S::kRows, end = min(first + S::kRows, p.seq);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int own = first + warp * 16 * M;

  const int head = place.bh * p.group;  // the first query head of the group
  __nv_bfloat16 *const k = shared, *const v = k + S::kOwned, *const streamed = v + S::kOwned;
  RowStats* const streamed_stats = reinterpret_cast<RowStats*>(streamed + 4 * S::kTile);
  __nv_bfloat16 *const k_own = k + warp * 16 * M * kStride<D>, *const v_own = k_own + S::kOwned;
  const FirstKeys first_key = p.first_keys(head);
  const int begin = first / N, all = (p.seq + N - 1) / N,
            tiles = kBounded ? first_key.tiles_that_see<N>(end - 1, begin, all) : all;
  load_tile<S::kRows, D>(k, p.in(qkv, head, 1), first);
  load_tile<S::kRows, D>(v, p.in(qkv, head, 2), first);

  Block<M, D> dk = {}, dv = {};
  const float scale_log2 = p.scale * kLog2e;
  for (int h = head; h < head + p.group; ++h) {
    const auto q_rows = p.in(qkv, h, 0);
    const auto d_rows = p.out(dout, h);
    auto load = [&](int t) {
      __nv_bfloat16* q = streamed + t % 2 * 2 * S::kTile;
      load_tile<N, D>(q, q_rows, t * N);
      load_tile<N, D>(q + S::kTile, d_rows, t * N);
      const int pair = static_cast<int>(threadIdx.x) * 2;
      if (pair < N) copy_async(streamed_stats + t % 2 * N + pair, stats + h * padded + t * N + pair, true);
    };
    if (h > head) __syncthreads();  // all are done with the last head's tiles
    load(begin);
    for (int t = begin; t < tiles; ++t) {
      __nv_bfloat16 *q = streamed + t % 2 * 2 * S::kTile, *d = q + S::kTile;
      // Some key of the block is not seen by all.
      const bool edge = t * N < first + S::kRows - 1 || (kBounded && first_key(t * N + N - 1) > first);
      copies_done();
      const bool poisoned =
          __syncthreads_or(edge && (copied_non_finite<N, D>(q) || copied_non_finite<N, D>(d))) != 0;
      if (t + 1 < tiles) load(t + 1);

      const int ahead = t * N - own;  // query j of the tile sees key i when i <= j + ahead
      auto sees = [ahead, t, own, first_key](int row, int j) {
        return row <= j + ahead && (!kBounded || own + row >= first_key(t * N + j));
      };
      const bool any = ahead > -N && own < end && (!kBounded || first_key(t * N) < own + 16 * M);
      Left<M, N> left_p, left_ds;
      if (any) {
        Block<M, N> s = {}, ds = {};
        add_dots<M, N, D>(s, k_own, q);
        add_dots<M, N, D>(ds, v_own, d);
        const float4* pairs = reinterpret_cast<const float4*>(streamed_stats + t % 2 * N) + lane % 4;
#pragma unroll
        for (int n = 0; n < N / 8; ++n) {
          const float4 two = pairs[n * 4];
#pragma unroll
          for (int m = 0; m < M; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              s[m][n][i] = fast_exp2(fmaf(s[m][n][i], scale_log2, -(i % 2 ? two.z : two.x)));
              ds[m][n][i] = s[m][n][i] * (ds[m][n][i] - (i % 2 ? two.w : two.y));
            }
        }
        if (edge) {
          for_each<M, N>(s, [&](float& x, int row, int j) { x = sees(row, j) ? x : 0; });
          for_each<M, N>(ds, [&](float& x, int row, int j) { x = sees(row, j) ? x : 0; });
        }
        left_p = s;
        left_ds = ds;
      }
      if (poisoned) {
        __syncthreads();  // the scores are done with q and d
        if (any) {
          add_non_finite<M, N, D>(dv, d, sees);
          add_non_finite<M, N, D>(dk, q, sees);
        }
        __syncthreads();
        zero_non_finite<N, D>(d);
        zero_non_finite<N, D>(q);
        __syncthreads();
      }
      if (any) {
        add_mixture<M, N, D>(dv, left_p, d);
        add_mixture<M, N, D>(dk, left_ds, q);
      }
    }
  }
  if (own >= end) return;
  for_each<M, D>(dk, [&](float& x, int, int) { x *= p.scale; });
  store_rows<M, D>(p.in(dqkv, head, 1), own, dk, k_own);
  store_rows<M, D>(p.in(dqkv, head, 2), own, dv, v_own);
}

template <class T>
void run(ExecutionContext& context, const AttentionArgs& a) {
  const char* what = "attention_backward";
  const Packing p(a, T{});
  const int64_t padded = padded_rows(a.seq);
  auto* stats = static_cast<RowStats*>(
      context.scratch(a.batch * a.heads * padded * static_cast<int64_t>(sizeof(RowStats))));
  launch(context, what, stats_kernel<T>, tiles_of(what, a, a.heads, kStatsRows, 8 * kStatsRows, 0), p, padded,
         a.out.as<const T>(), a.dout.as<const T>(), a.lse, stats);
  if (!on_tensor_cores(what, a)) return plain_attention_backward(context, a, stats);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    with_width(a, [&](auto width, auto bounded) {
      using K = Keys<width()>;
      using Q = Queries<width()>;
      launch(context, what, keys_kernel<width(), bounded()>,
             tiles_of(what, a, a.kv_heads, K::kRows, kTileThreads, K::kSharedBytes), p, a.qkv.as<const T>(),
             a.dout.as<const T>(), stats, padded, a.dqkv.as<T>());
      launch(context, what, queries_kernel<width(), bounded()>,
             tiles_of(what, a, a.heads, Q::kRows, kTileThreads, Q::kSharedBytes), p, a.qkv.as<const T>(),
             a.dout.as<const T>(), stats, padded, a.dqkv.as<T>());
    });
  }
}

}  // namespace

void attention_backward(ExecutionContext& context, const AttentionArgs& a) {
  if (is_empty(a)) return;
  on_tensor_cores("attention_backward", a);  // throws for what no kernel takes
  if (a.qkv.dtype == DType::f32) return run<float>(context, a);
  if (cudnn_backward(context, a)) return;
  run<__nv_bfloat16>(context, a);
}

}  // namespace sherd::cuda
