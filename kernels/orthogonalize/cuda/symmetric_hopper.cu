// Symmetric products on tensor cores of compute capability 9.0, the default there (`--symmetric-products auto`).
// SymmetricHopper.* in tests/cuda_host compares them with whole products, under the emulation and on a GPU.
// The cooperative schedule has run on one H200 (docs/gpu-results.md). The ping-pong schedule has run under the
// emulation only, and is used where a caller names its width (tile_width()).
//
// A block of three warpgroups takes tiles of 128 rows that reach the diagonal, one after another, over all
// matrices of the batch; n, k and the batch decide their width (symmetric_tiles.h). One thread of the third
// warpgroup copies pieces of both factors, 64 wide, into a ring of stages. The other two warpgroups multiply:
// - Cooperative (wide tiles): each multiplies 64 rows of every tile. The tensor cores idle during the stores.
// - Ping-pong (narrow tiles): each multiplies every other tile of the block, all 128 rows. While one stores
//   its tile, the other's products keep the tensor cores busy.
// Finished elements pass through shared memory, once to their place and once, transposed, to their mirror
// image; those above the diagonal are dropped. Sums run over k in order, sixteen elements an instruction, for
// every width and schedule, so that a matrix's bits depend on its elements only.
//
// Neither schedule can deadlock. Number the uses of stages in the order of the copies: tile by tile, k by k.
// The copy of use u waits for the release of use u - kStages. A release waits for the products of its use and
// the copy of the next. Products wait for their own copy and, in ping-pong, for the products of the tile
// before to be issued. The stores wait for no other warpgroup. So use u waits for earlier uses only, whatever
// the number of tiles and the depth.
#include <algorithm>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>

#include <sherd/kernels/device/cuda/hopper.h>
#include <sherd/kernels/device/cuda/launch.h>
#include <sherd/kernels/device/cuda/queue.h>
#include <sherd/kernels/gemm/cuda_matmul.h>

#include "symmetric.h"
#include "symmetric_tiles.h"

namespace sherd::cuda {
namespace {

constexpr int kRows = kTileRows, kDepth = 64;
constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kThreads = 3 * kGroup;
constexpr int kWarps = kGroup / 32;
constexpr int kHalfRows = kRows / 2;                   // rows of a product
constexpr int kStagingBytes = kHalfRows * (128 + 16);  // of a warpgroup: rows of 128 bytes, apart by 16 more
constexpr int kAlignment = 1024;                       // of tiles in 128-byte swizzle
constexpr int kMostStages = 6;
constexpr int kOtherBytes =
    kAlignment + 2 * kStagingBytes + (2 * kMostStages + 2) * static_cast<int>(sizeof(uint64_t));
constexpr int kMostBytes = 227 * 1024;  // of shared memory, on the chip that this is for

/// Constants that a width decides.
template <int kWidth>
struct Shape {
  static constexpr int kCols = kWidth;
  static constexpr int kSums = kCols / 2;                          // accumulators of a thread for half a tile
  static constexpr int kHalves = kCols <= kPingPongWidth ? 2 : 1;  // of a tile, that a warpgroup multiplies
  static constexpr int kABytes = kRows * kDepth * 2, kBBytes = kCols * kDepth * 2;
  static constexpr int kStageBytes = kABytes + kBBytes;
  static constexpr int kFitting = (kMostBytes - kOtherBytes) / kStageBytes;
  static constexpr int kStages = kFitting < kMostStages ? kFitting : kMostStages;
  static constexpr int kSharedBytes = kStages * kStageBytes + kOtherBytes;
  static_assert(kBBytes % kAlignment == 0 && kStages >= 4);
};

template <class Out>
struct Result {
  Out* c;
  const Out* addend;
  int64_t ld, stride, addend_ld, addend_stride;
  int64_t n, depths;       // depths: pieces of k
  int batch, rows, tiles;  // rows of tiles, and tiles, of a matrix
  float alpha, beta;
};

__device__ inline float widened(float v) { return v; }
__device__ inline float widened(__half v) { return __half2float(v); }
__device__ inline float widened(__nv_bfloat16 v) { return __bfloat162float(v); }
template <class T>
__device__ inline T narrowed(float v) {
  if constexpr (std::is_same_v<T, __half>) return __float2half_rn(v);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return __float2bfloat16_rn(v);
  if constexpr (std::is_same_v<T, float>) return v;
}

/// Tiles of one matrix after another, row by row.
template <int kCols>
struct Tile {
  int matrix = 0, row = 0, col = 0;

  template <class Out>
  __device__ void advance(int by, const Result<Out>& r) {
    matrix += by / r.tiles;
    col += by % r.tiles;
    for (int width = width_of(r); col >= width; width = width_of(r)) {
      col -= width;
      if (++row == r.rows) row = 0, ++matrix;
    }
  }

 private:
  /// Tiles of the row.
  template <class Out>
  __device__ int width_of(const Result<Out>& r) const {
    const int end = (row + 1) * kRows, n = static_cast<int>(r.n);
    return ((end < n ? end : n) + kCols - 1) / kCols;
  }
};

/// A place in the ring of stages; `parity` is that of the phase its barriers are in.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  __device__ void advance(int64_t by) {
    const int64_t to = stage + by;
    stage = static_cast<int>(to % kStages);
    parity ^= static_cast<uint32_t>(to / kStages) & 1;
  }
};

template <class T>
struct alignas(16) Chunk {
  static constexpr int kCount = 16 / static_cast<int>(sizeof(T));
  T v[kCount];
};

template <class T>
struct alignas(2 * sizeof(T)) Pair {
  T v[2];
};

/// Stores the columns [col0, col0 + kWidth) of 64 rows, staged in shared memory, and their mirror image.
template <int kWidth, class Out>
__device__ void store_both(const Out* staging, int pitch, Out* c, const Result<Out>& r, int64_t row0,
                           int64_t col0, int thread) {
  constexpr int kChunk = Chunk<Out>::kCount, kAcross = kWidth / kChunk;
  constexpr int kHere = kHalfRows * kAcross, kThere = kWidth * kHalfRows / (2 * kChunk);
#pragma unroll
  for (int item = thread; item < kHere; item += kGroup) {
    const int y = item / kAcross, x = item % kAcross * kChunk;
    const int64_t row = row0 + y, col = col0 + x;
    if (row >= r.n || col > row) continue;
    const Chunk<Out> chunk = *reinterpret_cast<const Chunk<Out>*>(staging + y * pitch + x);
    Out* const to = c + row * r.ld + col;
    if (col + kChunk - 1 <= row) {
      *reinterpret_cast<Chunk<Out>*>(to) = chunk;
    } else {
#pragma unroll
      for (int e = 0; e < kChunk; ++e)
        if (col + e <= row) to[e] = chunk.v[e];
    }
  }
#pragma unroll
  for (int item = thread; item < kThere; item += kGroup) {
    const int x = item % kWidth, y = item / kWidth * 2 * kChunk;
    const int64_t row = row0 + y, col = col0 + x;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t first = row + half * kChunk;
      Chunk<Out> chunk;
#pragma unroll
      for (int e = 0; e < kChunk; ++e) chunk.v[e] = staging[(y + half * kChunk + e) * pitch + x];
      Out* const to = c + col * r.ld + first;
      if (first > col && first + kChunk <= r.n) {
        *reinterpret_cast<Chunk<Out>*>(to) = chunk;
      } else {
#pragma unroll
        for (int e = 0; e < kChunk; ++e)
          if (first + e > col && first + e < r.n) to[e] = chunk.v[e];
      }
    }
  }
}

/// alpha * d + beta * addend of a warpgroup's 64 rows, to c: the columns from kBegin on, as many at a time
/// as the staging memory holds.
template <int kBegin = 0, class Out, int kSums>
__device__ void finish_tile(const float (&d)[kSums], Out* staging, const Result<Out>& r, int64_t matrix,
                            int64_t row0, int64_t col0, int group, int thread) {
  constexpr int kPass = 8 * Chunk<Out>::kCount, kPitch = kPass + Chunk<Out>::kCount;
  constexpr int kRest = 2 * kSums - kBegin, kWidth = kRest < kPass ? kRest : kPass;
  if constexpr (kRest > 0) {
    hopper::begin_with(thread);
    const int y = thread / 32 * 16 + thread % 32 / 4, x = thread % 4 * 2;
    const Out* const addend = r.addend + matrix * r.addend_stride;
    const int64_t first = col0 + kBegin;
    if (first > row0 + kHalfRows - 1 || first >= r.n) return;
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row = row0 + y + 8 * half, col = first + 8 * j + x;
        // A row's last pair may reach into its padding, never past it: rows have whole chunks.
        Pair<Out> add{}, sum;
        if (r.beta != 0 && row < r.n && col < r.n)
          add = *reinterpret_cast<const Pair<Out>*>(addend + row * r.addend_ld + col);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float v = r.alpha * d[(kBegin / 8 + j) * 4 + 2 * half + e];
          if (r.beta != 0) v += r.beta * widened(add.v[e]);
          sum.v[e] = narrowed<Out>(v);
        }
        *reinterpret_cast<Pair<Out>*>(staging + (y + 8 * half) * kPitch + 8 * j + x) = sum;
      }
    }
    hopper::named_barrier(1 + group, kGroup);
    store_both<kWidth>(staging, kPitch, r.c + matrix * r.stride, r, row0, first, thread);
    hopper::named_barrier(1 + group, kGroup);
    finish_tile<kBegin + kWidth>(d, staging, r, matrix, row0, col0, group, thread);
  }
}

template <class In, class Out, int kCols>
__global__ void __launch_bounds__(kThreads, 1)
    symmetric_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                     const Result<Out> result) {
  using Form = Shape<kCols>;
  constexpr int kStages = Form::kStages, kStageBytes = Form::kStageBytes, kABytes = Form::kABytes;
  constexpr int kHalves = Form::kHalves;
  SHERD_DYNAMIC_SHARED(unsigned char, memory);
  unsigned char* const stages =
      memory + (kAlignment - hopper::shared_address(memory) % kAlignment) % kAlignment;
  unsigned char* const staging = stages + kStages * kStageBytes;
  uint64_t* const full = reinterpret_cast<uint64_t*>(staging + 2 * kStagingBytes);
  uint64_t* const empty = full + kStages;
  uint64_t* const turns = empty + kStages;  // of the two multiplying warpgroups
  const int group = static_cast<int>(threadIdx.x) / kGroup, thread = static_cast<int>(threadIdx.x) % kGroup;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      hopper::barrier_init(full + s, 1);
      hopper::barrier_init(empty + s, 2 / kHalves * kWarps);
    }
    for (int g = 0; g < 2; ++g) hopper::barrier_init(turns + g, kWarps);
    hopper::barrier_init_done();
  }
  __syncthreads();
  Ring<kStages> ring;
  Tile<kCols> tile;
  tile.advance(static_cast<int>(blockIdx.x), result);
  const int step = static_cast<int>(gridDim.x);

  if (group == 2) {
    hopper::give_registers<40>();
    if (thread != 0) return;
    hopper::prefetch_map(&a);
    hopper::prefetch_map(&b);
    for (; tile.matrix < result.batch; tile.advance(step, result)) {
      for (int64_t k = 0; k < result.depths; ++k, ring.advance()) {
        hopper::barrier_wait(empty + ring.stage, ring.parity ^ 1);  // passes at once in the first round
        hopper::barrier_arrive_expecting(full + ring.stage, kStageBytes);
        unsigned char* const stage = stages + ring.stage * kStageBytes;
        const int x = static_cast<int>(k) * kDepth;
        hopper::copy_box(stage, &a, x, tile.row * kRows, tile.matrix, full + ring.stage);
        hopper::copy_box(stage + kABytes, &b, x, tile.col * kCols, tile.matrix, full + ring.stage);
      }
    }
    return;
  }

  hopper::take_registers<232>();
  Out* const my_staging = reinterpret_cast<Out*>(staging + group * kStagingBytes);
  const bool arrives = thread % 32 == 0;  // for its warp
  if (kHalves == 2 && group == 1) tile.advance(step, result), ring.advance(result.depths);
  float d[kHalves][Form::kSums];
  for (uint32_t turn = group ^ 1; tile.matrix < result.batch; tile.advance(kHalves * step, result)) {
    // Without turns, a warpgroup could wait for a stage whose previous use, the other's, is not yet full. The
    // parity would be that of a full stage. Group 0's first turn passes at once.
    if (kHalves == 2) hopper::barrier_wait(turns + group, turn), turn ^= 1;
    int before = -1;  // the stage that the products still in flight read
    for (int64_t k = 0; k < result.depths; ++k, ring.advance()) {
      hopper::barrier_wait(full + ring.stage, ring.parity);
      const unsigned char* const stage = stages + ring.stage * kStageBytes;
      const uint64_t right = hopper::tile_descriptor(stage + kABytes);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) hopper::hold(d[half]);
      hopper::products_fence();
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const int row = (kHalves == 2 ? half : group) * kHalfRows;
        const uint64_t left = hopper::tile_descriptor(stage + row * kDepth * 2);
#pragma unroll
        for (int part = 0; part < kDepth / 16; ++part)
          hopper::multiply_add(d[half], left + 2 * part, right + 2 * part, k > 0 || part > 0, In{});
      }
      hopper::products_commit();
      hopper::products_wait<1>();
#pragma unroll
      for (int half = 0; half < kHalves; ++half) hopper::hold(d[half]);
      if (before >= 0 && arrives) hopper::barrier_arrive(empty + before);
      before = ring.stage;
    }
    if (kHalves == 2 && arrives) hopper::barrier_arrive(turns + (group ^ 1));
    hopper::products_wait<0>();
#pragma unroll
    for (int half = 0; half < kHalves; ++half) hopper::hold(d[half]);
    if (arrives) hopper::barrier_arrive(empty + before);
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
      finish_tile(d[half], my_staging, result, tile.matrix,
                  int64_t{tile.row} * kRows + (kHalves == 2 ? half : group) * kHalfRows,
                  int64_t{tile.col} * kCols, group, thread);
    if (kHalves == 2) ring.advance(result.depths);
  }
}

using Encode = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, found at run time: libcuda is not linked.
Encode encoder() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult state{};
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &state),
        "symmetric_hopper: cuTensorMapEncodeTiled");
  if (state != cudaDriverEntryPointSuccess || !found)
    throw CudaError(
        "symmetric_hopper: the driver has no cuTensorMapEncodeTiled; use symmetric_products \"blocks\"");
  return reinterpret_cast<Encode>(found);
}

/// Boxes of `rows` x 64 elements of a batch of matrices, in 128-byte swizzle.
CUtensorMap map_of(Encode encode, const Matrices& m, int rows) {
  const int64_t apart = m.batch > 1 ? m.stride : m.rows * m.ld;  // a stride is required even for one matrix
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(m.cols), static_cast<cuuint64_t>(m.rows),
                              static_cast<cuuint64_t>(m.batch)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(m.ld) * 2, static_cast<cuuint64_t>(apart) * 2};
  const cuuint32_t box[] = {kDepth, static_cast<cuuint32_t>(rows), 1}, steps[] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, m.dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
             3, m.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw CudaError("symmetric_hopper: cuTensorMapEncodeTiled of " + std::to_string(m.batch) +
                    " matrices of " + std::to_string(m.rows) + " x " + std::to_string(m.cols) + ", rows " +
                    std::to_string(m.ld) + " elements apart, failed with CUresult " +
                    std::to_string(static_cast<int>(result)));
  return map;
}

template <class In, class Out, int kCols>
void start(ExecutionContext& ctx, const Matrices& a, const Matrices& b, const Terms& terms,
           const Matrices& c) {
  static const Encode encode = encoder();
  Result<Out> r{};
  r.c = static_cast<Out*>(c.data);
  r.ld = c.ld, r.stride = c.stride;
  if (terms.beta != 0) {
    r.addend = static_cast<const Out*>(terms.addend->data);
    r.addend_ld = terms.addend->ld, r.addend_stride = terms.addend->stride;
  }
  r.n = c.rows;
  r.depths = (a.cols + kDepth - 1) / kDepth;
  r.batch = static_cast<int>(c.batch);
  r.rows = static_cast<int>((c.rows + kRows - 1) / kRows);
  r.tiles = static_cast<int>(tiles_of(c.rows, kCols));
  r.alpha = static_cast<float>(terms.alpha), r.beta = static_cast<float>(terms.beta);
  const int64_t blocks = std::min<int64_t>(queue_of(ctx).chip().multiprocessors, r.tiles * c.batch);
  launch(ctx, "symmetric_hopper", symmetric_kernel<In, Out, kCols>,
         Grid{dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
              static_cast<size_t>(Shape<kCols>::kSharedBytes)},
         map_of(encode, a, kRows), map_of(encode, b, kCols), r);
}

template <class In, class Out, size_t... kIndex>
void start(ExecutionContext& ctx, const Matrices& a, const Matrices& b, const Terms& terms, const Matrices& c,
           int width, std::index_sequence<kIndex...>) {
  const bool known =
      ((kTileWidths[kIndex] == width ? (start<In, Out, kTileWidths[kIndex]>(ctx, a, b, terms, c), true)
                                     : false) ||
       ...);
  if (!known) throw InvalidArgument("symmetric_hopper: no tiles are " + std::to_string(width) + " wide");
}

bool places(const Matrices& m) {
  const int64_t size = size_of(m.dtype);
  return aligned(m.data, 16) && m.ld * size % 16 == 0 && m.stride * size % 16 == 0;
}

}  // namespace

bool symmetric_hopper_available(const Chip& chip, Factor a, Factor b, const Terms& terms, const Matrices& c) {
  const DType in = a.of.dtype;
  return chip.capability == 90 && chip.shared_bytes >= kMostBytes &&
         (in == DType::f16 || in == DType::bf16) && b.of.dtype == in &&
         (c.dtype == in || c.dtype == DType::f32) && !a.transposed &&
         (b.transposed || b.of.rows == b.of.cols) && places(a.of) && places(b.of) && places(c) &&
         (terms.beta == 0 || places(*terms.addend));
}

void symmetric_hopper(ExecutionContext& ctx, Factor a, Factor b, const Terms& terms, const Matrices& c,
                      int width) {
  if (width == 0) {
    const SymmetricShape shape{c.rows, a.of.cols, c.batch, static_cast<int>(size_of(c.dtype)),
                               terms.beta != 0};
    width = tile_width(shape, queue_of(ctx).chip().multiprocessors);
  }
  constexpr std::make_index_sequence<std::size(kTileWidths)> widths;
  auto with = [&](auto in) {
    using In = decltype(in);
    c.dtype == DType::f32 ? start<In, float>(ctx, a.of, b.of, terms, c, width, widths)
                          : start<In, In>(ctx, a.of, b.of, terms, c, width, widths);
  };
  a.of.dtype == DType::f16 ? with(__half{}) : with(__nv_bfloat16{});
}

}  // namespace sherd::cuda
