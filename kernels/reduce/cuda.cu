#include <sherd/kernels/reduce/reduce.h>

#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/device/cuda/vector.h>

// The pairwise tree over n sources: node j of level l covers sources [j 2^l, (j + 1) 2^l), cut off at n, and
// a node whose right child is empty is its left child. So every aligned group of 2^l sources is a node: a
// thread takes kLeaf sources at once, a kernel kMostSources, and what is more goes through scratch memory by
// groups.

namespace sherd::cuda {
namespace {

constexpr int kLeaf = 8, kLevels = 3, kMostSources = kLeaf << kLevels;
constexpr int64_t kScratchBytes = int64_t{32} << 20;

struct Sum {
  template <class A>
  static __device__ A apply(A a, A b) {
    return a + b;
  }
  static __device__ int32_t apply(int32_t a, int32_t b) {
    return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
  }
  static __device__ int64_t apply(int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
};
struct Max {
  template <class A>
  static __device__ A apply(A a, A b) {
    return a > b || a != a ? a : b;
  }
};
struct Min {
  template <class A>
  static __device__ A apply(A a, A b) {
    return a < b || a != a ? a : b;
  }
};

/// dst = the tree over `count` sources, in A.
template <class Op, class A, class To, class From>
struct Tree {
  static constexpr int kVec = 16 / static_cast<int>(std::min(sizeof(To), sizeof(From)));
  To* dst;
  int count;
  const From* sources[kMostSources];

  template <int N>
  __device__ void run(int64_t i) const {
    // Nodes of 1, 2, 4... leaves that wait for their right neighbours, like the bits of a counter.
    Vec<A, N> waiting[kLevels + 1] = {};
    const int leaves = (count + kLeaf - 1) / kLeaf;
    for (int j = 0; j < leaves; ++j) {
      Vec<A, N> node = leaf<N>(j * kLeaf, i);
      bool carried = true;
#pragma unroll
      for (int l = 0; l <= kLevels; ++l) {
        if (!carried) continue;
        carried = j >> l & 1;
        if (carried) {
          node = merged(waiting[l], node);
        } else {
          waiting[l] = node;
        }
      }
    }
    Vec<A, N> total = {};
    bool any = false;
#pragma unroll
    for (int l = 0; l <= kLevels; ++l) {
      if (!(leaves >> l & 1)) continue;
      total = any ? merged(waiting[l], total) : waiting[l];
      any = true;
    }
    Vec<To, N> out;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if constexpr (std::is_same_v<To, A>) {
        out[k] = total[k];
      } else {
        put(out[k], total[k]);
      }
    }
    store(dst, i, out);
  }

 private:
  /// The node over sources [first, first + kLeaf), of which the first exists.
  template <int N>
  __device__ Vec<A, N> leaf(int first, int64_t i) const {
    Vec<From, N> x[kLeaf] = {};
#pragma unroll
    for (int s = 0; s < kLeaf; ++s)
      if (first + s < count) x[s] = load<N>(sources[first + s], i);
    Vec<A, N> a[kLeaf];
#pragma unroll
    for (int s = 0; s < kLeaf; ++s)
#pragma unroll
      for (int k = 0; k < N; ++k) {
        if constexpr (std::is_same_v<A, From>) {
          a[s][k] = x[s][k];
        } else {
          a[s][k] = to_float(x[s][k]);
        }
      }
#pragma unroll
    for (int step = 1; step < kLeaf; step *= 2)
#pragma unroll
      for (int s = 0; s < kLeaf; s += 2 * step)
        if (first + s + step < count) a[s] = merged(a[s], a[s + step]);
    return a[0];
  }
  template <int N>
  static __device__ Vec<A, N> merged(const Vec<A, N>& left, const Vec<A, N>& right) {
    Vec<A, N> out;
#pragma unroll
    for (int k = 0; k < N; ++k) out[k] = Op::apply(left[k], right[k]);
    return out;
  }
};

/// Elements [begin, begin + count) of n sources, at most kMostSources.
template <class Op, class A, class To, class From>
void reduce_group(ExecutionContext& context, To* dst, const From* const* sources, int64_t n, int64_t begin,
                  int64_t count) {
  using T = Tree<Op, A, To, From>;
  T tree{dst, static_cast<int>(n), {}};
  for (int64_t s = 0; s < n; ++s) tree.sources[s] = sources[s] + begin;
  Cover c{count, 0, 0};
  for (int64_t head = 0; head < T::kVec && head + T::kVec <= count && c.vecs == 0; ++head)
    if (on_boundary<To, T::kVec>(dst, head) &&
        std::all_of(tree.sources, tree.sources + n,
                    [&](const From* p) { return on_boundary<From, T::kVec>(p, head); }))
      c = {count, head, (count - head) / T::kVec};
  launch(context, "reduce", over_elements<T>, grid_for(std::max(c.vecs, c.singles(T::kVec))), tree, c);
}

template <class Op, class T>
void reduce_typed(ExecutionContext& context, const ReduceArgs& a) {
  using A = std::conditional_t<sizeof(T) == 2, float, T>;
  const auto n = static_cast<int64_t>(a.sources.size());
  const auto* sources = reinterpret_cast<const T* const*>(a.sources.data());
  T* dst = static_cast<T*>(a.dst);
  if (n <= kMostSources) return reduce_group<Op, A>(context, dst, sources, n, a.begin, a.count);

  const int64_t groups = (n + kMostSources - 1) / kMostSources;
  if (groups > kMostSources)
    throw NotSupported("reduce: " + std::to_string(n) + " sources; at most " +
                       std::to_string(kMostSources * kMostSources) + " are");
  const int64_t step = kScratchBytes / (groups * static_cast<int64_t>(sizeof(A))) / 16 * 16;
  const int64_t most = std::min(step, (a.count + 15) / 16 * 16);  // every row begins on a boundary
  A* scratch = static_cast<A*>(context.scratch(groups * most * static_cast<int64_t>(sizeof(A))));
  const A* rows[kMostSources];
  for (int64_t g = 0; g < groups; ++g) rows[g] = scratch + g * most;
  for (int64_t i = 0; i < a.count; i += most) {
    const int64_t count = std::min(most, a.count - i);
    for (int64_t g = 0; g < groups; ++g)
      reduce_group<Op, A>(context, scratch + g * most, sources + g * kMostSources,
                          std::min<int64_t>(kMostSources, n - g * kMostSources), a.begin + i, count);
    reduce_group<Op, A>(context, dst + i, rows, groups, 0, count);
  }
}

template <class Op>
void reduce_any(ExecutionContext& context, const ReduceArgs& a) {
  switch (a.dtype) {
    case DType::f32:
      return reduce_typed<Op, float>(context, a);
    case DType::bf16:
      return reduce_typed<Op, __nv_bfloat16>(context, a);
    case DType::f16:
      return reduce_typed<Op, __half>(context, a);
    case DType::f64:
      return reduce_typed<Op, double>(context, a);
    case DType::i32:
      return reduce_typed<Op, int32_t>(context, a);
    case DType::i64:
      return reduce_typed<Op, int64_t>(context, a);
    case DType::u8:
    case DType::i8:
    case DType::f8_e4m3:
      break;
  }
  throw InvalidArgument("reduce: 8-bit types cannot be reduced; use f32, bf16, f16, f64, i32 or i64");
}

// Plain sums: chunks of consecutive elements, one to a block, whose threads add every kThreads-th of them;
// then the sums of the chunks in the same way. The order depends on the count alone.
constexpr int kThreads = 256;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int64_t kLeastChunk = 16 * kThreads, kMostChunks = 1024;

/// sums[block] = the sum of its chunk, or added to it with `add`.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_chunks(double* sums, const T* x, int64_t count, int64_t chunk, bool add) {
  const int64_t begin = blockIdx.x * chunk, end = begin + chunk < count ? begin + chunk : count;
  double sum = 0;
#pragma unroll 8
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) sum += static_cast<double>(x[i]);
  __shared__ double of_warp[kThreads / 32];
  for (int step = 16; step > 0; step /= 2)
    sum += __shfl_down_sync(kAllLanes, sum, static_cast<unsigned>(step));
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / 32; ++w) sum += of_warp[w];
  sums[blockIdx.x] = add ? sums[blockIdx.x] + sum : sum;
}

void reduce(ExecutionContext& context, const ReduceArgs& a) {
  if (a.count <= 0) return;
  if (a.sources.size() == 1) {
    const int64_t size = size_of(a.dtype);
    return CopyKernels::cuda()->copy(context, a.dst, static_cast<const char*>(a.sources[0]) + a.begin * size,
                                     a.count * size);
  }
  switch (a.op) {
    case ReduceOp::sum:
      return reduce_any<Sum>(context, a);
    case ReduceOp::max:
      return reduce_any<Max>(context, a);
    case ReduceOp::min:
      return reduce_any<Min>(context, a);
  }
}

void accumulate_sum(ExecutionContext& context, double* out, Ref from, int64_t count) {
  const float* x = from.as<float>();
  if (count <= 0) return;
  const int64_t chunks = std::clamp<int64_t>(count / kLeastChunk, 1, kMostChunks);
  const int64_t chunk = (count + chunks - 1) / chunks;
  const Grid one{dim3(1), dim3(kThreads)};
  if (chunks == 1)
    return launch(context, "accumulate_sum", sum_chunks<float>, one, out, x, count, chunk, true);
  auto* sums = static_cast<double*>(context.scratch(chunks * static_cast<int64_t>(sizeof(double))));
  launch(context, "accumulate_sum", sum_chunks<float>,
         Grid{dim3(static_cast<unsigned>(chunks)), dim3(kThreads)}, sums, x, count, chunk, false);
  launch(context, "accumulate_sum", sum_chunks<double>, one, out, static_cast<const double*>(sums), chunks,
         chunks, true);
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const ReduceKernels* ReduceKernels::cuda() {
  static constexpr ReduceKernels table{.reduce = cuda::reduce, .accumulate_sum = cuda::accumulate_sum};
  return &table;
}

}  // namespace sherd
