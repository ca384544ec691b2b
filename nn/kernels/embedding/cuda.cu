#include <sherd/nn/kernels/embedding/embedding.h>

#include <sherd/kernels/device/cuda/index_guard.h>
#include <sherd/kernels/device/cuda/queue.h>
#include <sherd/kernels/device/cuda/vector.h>

#include "cuda_sort_pairs.h"

// The gradient of the table without floating-point atomics: positions are sorted by token, and every row of
// the table adds up its run of them in increasing order: the bits of the reference. Runs longer than kRun are
// summed in pieces of kRun, which are then added in their order.

namespace sherd::cuda {
namespace {

constexpr int32_t kRun = 512;

/// A piece of a run of equal tokens: sorted positions [begin, min(end, begin + kRun)) of the run [first,
/// end).
struct Piece {
  int32_t first, begin, end;
};

__device__ bool is_row(int64_t row, int64_t vocab) { return row >= 0 && row < vocab; }

/// Groups of N columns by block.x, rows by block.y. A token without a row here
/// counts as a row of zeros.
template <class T, int N>
__global__ void __launch_bounds__(256)
    gather_rows(T* out, const int32_t* tokens, const T* table, const T* positions, EmbeddingArgs a) {
  const int64_t c = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * N;
  if (c >= a.width) return;
  for (int64_t i = int64_t{blockIdx.y} * blockDim.y + threadIdx.y; i < a.count;
       i += int64_t{gridDim.y} * blockDim.y) {
    const int64_t row = tokens[i] - a.begin;
    Vec<T, N> v = {};
    if (is_row(row, a.vocab)) v = load<N>(table, row * a.width + c);
    if (positions != nullptr) {
      const Vec<T, N> p = load<N>(positions, i % a.seq * a.width + c);
#pragma unroll
      for (int k = 0; k < N; ++k) put(v[k], __fadd_rn(to_float(v[k]), to_float(p[k])));
    }
    store(out, i * a.width + c, v);
  }
}

/// The order of the pieces is open; what is done with a piece does not depend on it. (Thrust's copy_if keeps an order, but makes
/// the host wait for their number.)
__global__ void __launch_bounds__(256)
    find_pieces(Piece* pieces, int32_t* pieces_found, const int32_t* rows, int64_t count, int64_t vocab) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t row = rows[i];
    if (row == vocab) continue;
    const int32_t begin = static_cast<int32_t>(i), first = lower_bound(rows, count, row);
    if ((begin - first) % kRun == 0)
      pieces[atomicAdd(pieces_found, 1)] = {first, begin, lower_bound(rows, count, row + 1)};
  }
}

/// Sums of pieces that are not the first of their run. Their beginnings are kRun apart at least.
__device__ float* later_sum(float* sums, int32_t begin, int64_t width) { return sums + begin / kRun * width; }

/// First pieces go to the table, the others to `sums`.
template <class T, int N>
__global__ void __launch_bounds__(256)
    add_pieces(float* dtable, float* sums, const Piece* pieces, const int32_t* pieces_found, Pairs sorted,
               const T* dout, int64_t width) {
  const int64_t c = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * N;
  if (c >= width) return;
  const int64_t n = *pieces_found;
  for (int64_t p = blockIdx.y * blockDim.y + threadIdx.y; p < n; p += gridDim.y * blockDim.y) {
    const Piece piece = pieces[p];
    const bool later = piece.begin != piece.first;
    float* to = later ? later_sum(sums, piece.begin, width) : dtable + sorted.rows[piece.begin] * width;
    Vec<float, N> sum = {};
    if (!later) sum = load<N>(to, c);
    const int32_t rows = piece.end - piece.begin < kRun ? piece.end - piece.begin : kRun;
#pragma unroll 4
    for (int32_t r = 0; r < rows; ++r) {
      const Vec<T, N> d = load<N>(dout, sorted.positions[piece.begin + r] * width + c);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] = __fadd_rn(sum[k], to_float(d[k]));
    }
    store(to, c, sum);
  }
}

template <int N>
__global__ void __launch_bounds__(256)
    add_later_pieces(float* dtable, float* sums, const Piece* pieces, const int32_t* pieces_found,
                     Pairs sorted, int64_t width) {
  const int64_t c = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * N;
  if (c >= width) return;
  const int64_t n = *pieces_found;
  for (int64_t p = blockIdx.y * blockDim.y + threadIdx.y; p < n; p += gridDim.y * blockDim.y) {
    const Piece piece = pieces[p];
    if (piece.begin != piece.first || piece.end - piece.begin <= kRun) continue;
    float* to = dtable + sorted.rows[piece.begin] * width;
    Vec<float, N> sum = load<N>(to, c);
    for (int32_t begin = piece.begin + kRun; begin < piece.end; begin += kRun) {
      const Vec<float, N> d = load<N>(later_sum(sums, begin, width), c);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] = __fadd_rn(sum[k], d[k]);
    }
    store(to, c, sum);
  }
}

/// dpositions[s] += dout[s], dout[s + seq], ... in this order.
template <class T, int N>
__global__ void __launch_bounds__(256)
    add_positions(float* dpositions, const T* dout, int64_t count, int64_t seq, int64_t width) {
  const int64_t c = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * N;
  if (c >= width) return;
  for (int64_t s = int64_t{blockIdx.y} * blockDim.y + threadIdx.y; s < seq;
       s += int64_t{gridDim.y} * blockDim.y) {
    Vec<float, N> sum = load<N>(dpositions, s * width + c);
#pragma unroll 4
    for (int64_t i = s; i < count; i += seq) {
      const Vec<T, N> d = load<N>(dout, i * width + c);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] = __fadd_rn(sum[k], to_float(d[k]));
    }
    store(dpositions, s * width + c, sum);
  }
}

/// Blocks over `groups` groups of columns and `rows` rows, a few rows to a thread where there are many.
Grid grid_over_rows(int64_t groups, int64_t rows) {
  const dim3 block = row_block(groups);
  const unsigned x = blocks_of(groups, block.x, INT32_MAX);
  return {dim3(x, blocks_of(rows, block.y, std::max<int64_t>(1, 132 * 32 / x))), block};
}

struct TableWork {
  Pairs sorted;
  Piece* pieces;
  int32_t* found;
  float* sums;
  SortWork sort;
};

template <class T, int N>
void add_to_table(ExecutionContext& context, const EmbeddingArgs& a) {
  const TableWork w = carve(context, [&](Carver& carver) {
    return TableWork{.sorted = {carver.array<int32_t>(a.count), carver.array<int32_t>(a.count)},
                     .pieces = carver.array<Piece>(a.count),
                     .found = carver.array<int32_t>(1),
                     .sums = carver.array<float>((a.count / kRun + 1) * a.width),
                     .sort = sort_work(carver, a.count, a.vocab)};
  });
  const char* what = "embedding_backward";
  sort_pairs(context, w.sorted, w.sort, a.tokens, a.count, a.begin, a.vocab);
  check(cudaMemsetAsync(w.found, 0, sizeof *w.found, stream_of(context)), what);
  launch(context, what, find_pieces, grid_for(a.count), w.pieces, w.found, w.sorted.rows, a.count, a.vocab);
  const Grid grid = grid_over_rows(a.width / N, a.count);
  launch(context, what, add_pieces<T, N>, grid, a.dtable.as<float>(), w.sums, w.pieces, w.found, w.sorted,
         a.dout.as<T>(), a.width);
  if (a.count > kRun)
    launch(context, what, add_later_pieces<N>, grid, a.dtable.as<float>(), w.sums, w.pieces, w.found,
           w.sorted, a.width);
}

template <class T, int N>
void add_all(ExecutionContext& context, const EmbeddingArgs& a) {
  add_to_table<T, N>(context, a);
  if (a.dpositions.data != nullptr)
    launch(context, "embedding_backward", add_positions<T, N>, grid_over_rows(a.width / N, a.seq),
           a.dpositions.as<float>(), a.dout.as<T>(), a.count, a.seq, a.width);
}

void embedding_forward(ExecutionContext& context, const EmbeddingArgs& a) {
  if (a.count <= 0 || a.width <= 0) return;
  with_f32_bf16(a.table.dtype, [&]<class T>(T) {
    constexpr int kVec = 16 / sizeof(T);
    T* out = a.out.as<T>();
    const T *table = a.table.as<T>(), *positions = a.positions.as<T>();
    const bool fast = rows_on_boundaries<kVec>(a.width, out, table, positions);
    launch(context, "embedding_forward", fast ? gather_rows<T, kVec> : gather_rows<T, 1>,
           grid_over_rows(fast ? a.width / kVec : a.width, a.count), out, a.tokens, table, positions, a);
  });
}

void embedding_backward(ExecutionContext& context, const EmbeddingArgs& a) {
  if (a.count <= 0 || a.width <= 0) return;
  if (a.count > INT32_MAX || a.vocab > INT32_MAX)
    throw NotSupported("embedding_backward: " + std::to_string(a.count) + " tokens of a vocabulary of " +
                       std::to_string(a.vocab) + "; both must be below 2^31, so give it less at once");
  with_f32_bf16(a.dout.dtype, [&]<class T>(T) {
    constexpr int kVec = 16 / sizeof(T);
    const bool fast = rows_on_boundaries<kVec>(a.width, a.dtable.as<float>(), a.dpositions.as<const float>(),
                                               a.dout.as<T>());
    fast ? add_all<T, kVec>(context, a) : add_all<T, 1>(context, a);
  });
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const EmbeddingKernels* EmbeddingKernels::cuda() {
  static constexpr EmbeddingKernels table{
      .embedding_forward = cuda::embedding_forward,
      .embedding_backward = cuda::embedding_backward,
  };
  return &table;
}

}  // namespace sherd
