// Common part of the attention kernels: places of heads, and backward's data of a row. Private to
// attention's CUDA kernels.
//
// Two families: on tensor cores (bf16, heads up to 128 wide) and in plain fp32 arithmetic (f32, and wider
// heads). In both a block owns a tile of rows of one (batch, head) and streams tiles of the other side
// through shared memory; nothing of size seq x seq exists. The order of every sum depends on seq, head_dim and
// heads / kv_heads alone.
//
// Grouped queries: blocks that own query rows read the key head of their query head; blocks that own key rows
// let all query heads of the group stream by, one after the other, into the same sums. That kernel has batch *
// kv_heads times the tiles as blocks: with very few key heads and short sequences it leaves multiprocessors idle.
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <initializer_list>
#include <string>
#include <type_traits>

#include <sherd/kernels/device/cuda/launch.h>
#include <sherd/kernels/device/cuda/vector.h>
#include <sherd/nn/kernels/attention/attention.h>

namespace sherd::cuda {

inline constexpr float kLog2e = 1.4426950408889634f;

/// One head's rows of a packed tensor.
template <class T>
struct Rows {
  T* data;
  int stride, count, width;
  bool vectors;  // rows consist of aligned 16-byte pieces

  __device__ __forceinline__ T* row(int i) const { return data + int64_t{i} * stride; }
};

/// The first keys that the rows of a sequence see, which never fall from one row to the next. Kernels have a form with
/// them, kBounded, and one where every row sees all keys before it, so that the latter pays nothing for them.
struct FirstKeys {
  const int32_t* starts;  // of the sequence, or null
  int window, last;       // last: the last row; later ones count as it

  __device__ __forceinline__ int operator()(int row) const {
    const int first = window > 0 && row >= window ? row - window + 1 : 0;
    return starts == nullptr ? first : max(first, starts[min(row, last)]);
  }
  /// The end of the tiles of N rows, from `tile` on, of which some row sees a key up to `key`.
  template <int N>
  __device__ __forceinline__ int tiles_that_see(int key, int tile, int end) const {
    while (tile < end) {
      const int middle = tile + (end - tile) / 2;
      if ((*this)(middle * N) <= key)
        tile = middle + 1;
      else
        end = middle;
    }
    return end;
  }
};

inline bool bounded(const AttentionArgs& a) { return a.window > 0 || a.starts != nullptr; }

/// Places of the heads of a call.
struct Packing {
  int heads, kv_heads, group;  // group: query heads that use one key head
  int seq, width;              // width: head_dim
  int out_stride, in_stride;   // of a row
  bool vectors;                // of all tensors of the call
  float scale;                 // of scores
  int window;                  // as starts and lengths: AttentionArgs
  const int32_t* starts;
  const int32_t* lengths;

  template <class T>
  Packing(const AttentionArgs& a, T)
      : heads(static_cast<int>(a.heads)),
        kv_heads(static_cast<int>(a.kv_heads)),
        group(heads / kv_heads),
        seq(static_cast<int>(a.seq)),
        width(static_cast<int>(a.head_dim)),
        out_stride(heads * width),
        in_stride(out_stride + 2 * kv_heads * width),
        vectors(width % static_cast<int>(16 / sizeof(T)) == 0),
        scale(1 / std::sqrt(static_cast<float>(a.head_dim))),
        window(static_cast<int>(a.window)),
        starts(a.starts),
        lengths(a.lengths) {
    for (const void* data : {a.qkv.data, a.out.data, a.dout.data, a.dqkv.data})
      vectors = vectors && reinterpret_cast<uintptr_t>(data) % 16 == 0;
  }

  /// Returns the first keys of the sequence of query head `bh`, counted over batch and heads, as below.
  __device__ __forceinline__ FirstKeys first_keys(int bh) const {
    return {starts == nullptr ? nullptr : starts + int64_t{bh / heads} * seq, window, seq - 1};
  }
  /// Rows of that sequence that are not padding.
  __device__ __forceinline__ int counted(int bh) const {
    return lengths == nullptr ? seq : min(seq, lengths[bh / heads]);
  }
  /// q, k, v (part 0, 1, 2) of query head `bh`.
  template <class T>
  __device__ __forceinline__ Rows<T> in(T* qkv, int bh, int part) const {
    const int h = bh % heads, column = part == 0 ? h : heads + (part - 1) * kv_heads + h / group;
    return {qkv + int64_t{bh / heads} * seq * in_stride + column * width, in_stride, seq, width, vectors};
  }
  template <class T>
  __device__ __forceinline__ Rows<T> out(T* out, int bh) const {
    return {out + int64_t{bh / heads} * seq * out_stride + bh % heads * width, out_stride, seq, width,
            vectors};
  }
};

/// Tile and head (query heads or key heads, by the kernel) of a block. Tiles of a head are neighbours, for
/// its k and v stay in the cache.
struct Place {
  int tiles, bh, tile;
  __device__ __forceinline__ Place(const Packing& p, int rows)
      : tiles((p.seq + rows - 1) / rows),
        bh(static_cast<int>(blockIdx.x) / tiles),
        tile(static_cast<int>(blockIdx.x) % tiles) {}
};

/// One block per tile of `rows` rows of each of `heads` heads. @throws NotSupported.
inline Grid tiles_of(const char* what, const AttentionArgs& a, int64_t heads, int rows, int threads,
                     size_t shared_bytes) {
  const int64_t blocks = a.batch * heads * ((a.seq + rows - 1) / rows);
  if (blocks > INT32_MAX)
    throw NotSupported(std::string(what) + ": batch " + std::to_string(a.batch) + " x heads " +
                       std::to_string(heads) + " of seq " + std::to_string(a.seq) +
                       " is more than a grid of 2^31 blocks; split the batch");
  return {dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(threads)), shared_bytes};
}

/// {lse * log2(e), sum(dout * out)} of a query row. Rows past seq have {inf, 0}: their probabilities are 0.
using RowStats = float2;

inline constexpr int kStatsRows = 64;
/// RowStats per head: whole tiles of queries.
inline int64_t padded_rows(int64_t seq) { return (seq + kStatsRows - 1) / kStatsRows * kStatsRows; }

/// Returns whether tensor cores can compute the call. @throws NotSupported for a call that no kernel can
/// compute.
inline bool on_tensor_cores(const char* what, const AttentionArgs& a) {
  if (a.qkv.dtype != DType::f32 && a.qkv.dtype != DType::bf16)
    throw NotSupported(std::string(what) + ": dtype " + name_of(a.qkv.dtype) + "; must be f32 or bf16");
  if (a.seq > INT32_MAX / 2 || a.heads > INT32_MAX / 1024)
    throw NotSupported(std::string(what) + ": seq " + std::to_string(a.seq) + " with " +
                       std::to_string(a.heads) + " heads; must be below 2^30 and 2^21");
  if (a.head_dim > 256)
    throw NotSupported(std::string(what) + ": head_dim " + std::to_string(a.head_dim) +
                       "; CUDA kernels take at most 256, use more heads");
  return a.qkv.dtype == DType::bf16 && a.head_dim <= 128;
}

inline bool is_empty(const AttentionArgs& a) {
  return a.batch == 0 || a.heads == 0 || a.seq == 0 || a.head_dim == 0;
}

/// Loads as many elements of `from` as 16 bytes hold; zeros from `count` on.
template <class T, int N = 16 / sizeof(T)>
__device__ __forceinline__ Vec<T, N> load_some(const T* from, int count, bool aligned) {
  if (aligned && count >= N) return load<N>(from, 0);
  Vec<T, N> some;
#pragma unroll
  for (int i = 0; i < N; ++i) some[i] = i < count ? from[i] : T{};
  return some;
}

/// Raises max_logits[head of bh] to `logit`, a thread's own value. A maximum does not depend on the order.
/// Bits of non-negative floats are ordered as signed integers; bits of negative floats are ordered in reverse
/// as unsigned integers. Either order places the floats of the other sign correctly. NaN is ignored.
__device__ __forceinline__ void raise_max_logit(float* max_logits, const Packing& p, int bh, float logit) {
  float* const most = max_logits + bh % p.heads;
  logit += 0.0f;  // -0 becomes 0
  if (logit >= 0)
    atomicMax(reinterpret_cast<int*>(most), __float_as_int(logit));
  else if (logit < 0)
    atomicMin(reinterpret_cast<unsigned*>(most), __float_as_uint(logit));
}

/// For calls that tensor cores do not take.
void plain_attention_forward(ExecutionContext&, const AttentionArgs&);
void plain_attention_backward(ExecutionContext&, const AttentionArgs&, const RowStats* stats);

/// Calls call(constant, kBounded) with the least of 32, 64, 96, 128 that holds a head.
template <class Call>
void with_width(const AttentionArgs& a, Call&& call) {
  const auto with = [&](auto width) {
    if (bounded(a)) return call(width, std::true_type{});
    call(width, std::false_type{});
  };
  if (a.head_dim <= 32) return with(std::integral_constant<int, 32>{});
  if (a.head_dim <= 64) return with(std::integral_constant<int, 64>{});
  if (a.head_dim <= 96) return with(std::integral_constant<int, 96>{});
  with(std::integral_constant<int, 128>{});
}

}  // namespace sherd::cuda
