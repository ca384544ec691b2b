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

constexpr uint32_t kRun = 512;

/// A piece of a run of equal tokens: sorted positions [begin, min(end, begin + kRun)) of the run [first,
/// end).
struct Piece {
  uint32_t first, begin, end;
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

/// Keys are rows of the table. A token without one sorts behind all of them.
__global__ void __launch_bounds__(256) make_pairs(Pairs pairs, uint32_t* pieces_found, const int32_t* tokens,
                                                  int64_t count, int64_t vocab, int64_t first_token) {
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (thread == 0) *pieces_found = 0;
  for (int64_t i = thread; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t row = tokens[i] - first_token;
    pairs.keys[i] = static_cast<uint32_t>(is_row(row, vocab) ? row : vocab);
    pairs.places[i] = static_cast<uint32_t>(i);
  }
}

/// The first of `count` sorted keys that is not below `key`.
__device__ uint32_t lower_bound(const uint32_t* keys, int64_t count, uint32_t key) {
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (keys[middle] < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return static_cast<uint32_t>(low);
}

/// The order of the pieces is open; what is done with a piece does not depend on it.
__global__ void __launch_bounds__(256)
    find_pieces(Piece* pieces, uint32_t* pieces_found, const uint32_t* keys, int64_t count, int64_t vocab) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const uint32_t key = keys[i];
    if (key == vocab) continue;
    const uint32_t begin = static_cast<uint32_t>(i), first = lower_bound(keys, count, key);
    if ((begin - first) % kRun == 0)
      pieces[atomicAdd(pieces_found, 1u)] = {first, begin, lower_bound(keys, count, key + 1)};
  }
}

/// Sums of pieces that are not the first of their run. Their beginnings are kRun apart at least.
__device__ float* later_sum(float* sums, uint32_t begin, int64_t width) {
  return sums + begin / kRun * width;
}

/// First pieces go to the table, the others to `sums`.
template <class T, int N>
__global__ void __launch_bounds__(256)
    add_pieces(float* dtable, float* sums, const Piece* pieces, const uint32_t* pieces_found, Pairs sorted,
               const T* dout, int64_t width) {
  const int64_t c = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * N;
  if (c >= width) return;
  const uint32_t n = *pieces_found;
  for (uint32_t p = blockIdx.y * blockDim.y + threadIdx.y; p < n; p += gridDim.y * blockDim.y) {
    const Piece piece = pieces[p];
    const bool later = piece.begin != piece.first;
    float* to = later ? later_sum(sums, piece.begin, width) : dtable + sorted.keys[piece.begin] * width;
    Vec<float, N> sum = {};
    if (!later) sum = load<N>(to, c);
    const uint32_t rows = piece.end - piece.begin < kRun ? piece.end - piece.begin : kRun;
#pragma unroll 4
    for (uint32_t r = 0; r < rows; ++r) {
      const Vec<T, N> d = load<N>(dout, sorted.places[piece.begin + r] * width + c);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] = __fadd_rn(sum[k], to_float(d[k]));
    }
    store(to, c, sum);
  }
}

template <int N>
__global__ void __launch_bounds__(256)
    add_later_pieces(float* dtable, float* sums, const Piece* pieces, const uint32_t* pieces_found,
                     Pairs sorted, int64_t width) {
  const int64_t c = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * N;
  if (c >= width) return;
  const uint32_t n = *pieces_found;
  for (uint32_t p = blockIdx.y * blockDim.y + threadIdx.y; p < n; p += gridDim.y * blockDim.y) {
    const Piece piece = pieces[p];
    if (piece.begin != piece.first || piece.end - piece.begin <= kRun) continue;
    float* to = dtable + sorted.keys[piece.begin] * width;
    Vec<float, N> sum = load<N>(to, c);
    for (uint32_t begin = piece.begin + kRun; begin < piece.end; begin += kRun) {
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

/// Parts of the scratch memory, each on a boundary of 256 bytes.
class Parts {
 public:
  template <class T>
  int64_t add(int64_t count) {
    const int64_t at = bytes_;
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return at;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

template <class T, int N>
void add_to_table(ExecutionContext& context, const EmbeddingArgs& a) {
  Parts parts;
  const int64_t keys = parts.add<uint32_t>(a.count), places = parts.add<uint32_t>(a.count);
  const int64_t spare_keys = parts.add<uint32_t>(a.count), spare_places = parts.add<uint32_t>(a.count);
  const int64_t pieces_at = parts.add<Piece>(a.count), found_at = parts.add<uint32_t>(1);
  const int64_t sort_at = parts.add<char>(sort_scratch_bytes(a.count));
  const int64_t sums_at = parts.add<float>((a.count / kRun + 1) * a.width);
  char* scratch = static_cast<char*>(context.scratch(parts.bytes()));
  const auto words = [&](int64_t at) { return reinterpret_cast<uint32_t*>(scratch + at); };

  const Pairs pairs{words(keys), words(places)}, spare{words(spare_keys), words(spare_places)};
  auto* pieces = reinterpret_cast<Piece*>(scratch + pieces_at);
  auto* sums = reinterpret_cast<float*>(scratch + sums_at);
  uint32_t* found = words(found_at);
  const char* what = "embedding_backward";
  launch(context, what, make_pairs, grid_for(a.count), pairs, found, a.tokens, a.count, a.vocab, a.begin);
  const Pairs sorted =
      sort_pairs(context, pairs, spare, a.count, static_cast<uint32_t>(a.vocab), scratch + sort_at);
  launch(context, what, find_pieces, grid_for(a.count), pieces, found, sorted.keys, a.count, a.vocab);
  const Grid grid = grid_over_rows(a.width / N, a.count);
  launch(context, what, add_pieces<T, N>, grid, a.dtable.as<float>(), sums, pieces, found, sorted,
         a.dout.as<T>(), a.width);
  if (a.count > kRun)
    launch(context, what, add_later_pieces<N>, grid, a.dtable.as<float>(), sums, pieces, found, sorted,
           a.width);
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
