// Never run on a chip of compute capability 9.0, for none was at hand; it passes under the emulation. Off
// unless DeviceOptions::symmetric_products asks for it; SymmetricHopper.* in tests/cuda_host compares it with
// the blocks.
//
// A block of three warpgroups takes tiles of 128 x 256 that reach the diagonal, one after another, over all
// matrices of the batch. One thread of the third warpgroup copies pieces of both factors, 64 wide, into a
// ring of four stages; the other two warpgroups each multiply 64 rows of the tile. Finished elements pass
// through shared memory, once to their place and once, transposed, to their mirror image; those above the
// diagonal are dropped. Sums run over k in order, so that a matrix's bits depend on nothing but its elements.
#include <algorithm>
#include <string>
#include <type_traits>

#include "hopper.h"
#include "launch.h"
#include "matmul.h"
#include "queue.h"
#include "symmetric.h"

namespace sherd::cuda {
namespace {

constexpr int kRows = 128, kCols = 256, kDepth = 64, kStages = 4;
constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kThreads = 3 * kGroup;
constexpr int kGroupRows = kRows / 2;  // of the tile, per multiplying warpgroup
constexpr int kABytes = kRows * kDepth * 2, kBBytes = kCols * kDepth * 2;
constexpr int kStageBytes = kABytes + kBBytes;
constexpr int kStagingBytes = kGroupRows * (128 + 16);  // of a warpgroup: rows of 128 bytes, apart by 16 more
constexpr int kAlignment = 1024;                        // of tiles in 128-byte swizzle
constexpr int kSharedBytes =
    kAlignment + kStages * kStageBytes + 2 * kStagingBytes + 2 * kStages * static_cast<int>(sizeof(uint64_t));

template <class Out>
struct Result {
  Out* c;
  const Out* addend;
  int64_t ld, stride, addend_ld, addend_stride;
  int64_t n, depths, tiles;  // depths: pieces of k; tiles: of all matrices
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

/// Tile `index` of a matrix: rows of tiles come in pairs 2p and 2p + 1 of p + 1 tiles each.
struct Tile {
  int row, col;
};
__host__ __device__ inline int64_t tiles_of(int64_t n) {
  const int64_t rows = (n + kRows - 1) / kRows, pairs = rows / 2;
  return pairs * (pairs + 1) + (rows % 2 ? pairs + 1 : 0);
}
__device__ inline Tile tile_at(int64_t index) {
  int64_t p = static_cast<int64_t>((sqrtf(4.0f * static_cast<float>(index) + 1) - 1) / 2);
  while (p * (p + 1) > index) --p;
  while ((p + 1) * (p + 2) <= index) ++p;
  const int64_t rest = index - p * (p + 1);
  const bool second = rest > p;
  return {static_cast<int>(2 * p + (second ? 1 : 0)), static_cast<int>(second ? rest - p - 1 : rest)};
}

/// A place in the ring of stages; `parity` is that of the phase its barriers are in.
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
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

/// Stores the columns [col0, col0 + 128 bytes) of 64 rows, staged in shared memory, and their mirror image.
template <class Out>
__device__ void store_both(const Out* staging, int pitch, Out* c, const Result<Out>& r, int64_t row0,
                           int64_t col0, int thread) {
  constexpr int kChunk = Chunk<Out>::kCount, kWidth = 8 * kChunk;
#pragma unroll
  for (int q = 0; q < kGroupRows * 8 / kGroup; ++q) {
    const int item = thread + q * kGroup, y = item / 8, x = item % 8 * kChunk;
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
  for (int q = 0; q < kWidth * kGroupRows / (2 * kChunk) / kGroup; ++q) {
    const int item = thread + q * kGroup, x = item % kWidth, y = item / kWidth * 2 * kChunk;
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

/// alpha * d + beta * addend of a warpgroup's 64 x 256 elements, to c.
template <class Out>
__device__ void finish_tile(const float (&d)[128], Out* staging, const Result<Out>& r, int64_t matrix,
                            int64_t row0, int64_t col0, int group, int thread) {
  constexpr int kWidth = 8 * Chunk<Out>::kCount, kPitch = kWidth + Chunk<Out>::kCount;
  const int y = thread / 32 * 16 + thread % 32 / 4, x = thread % 4 * 2;
  const Out* const addend = r.addend + matrix * r.addend_stride;
#pragma unroll
  for (int pass = 0; pass < kCols / kWidth; ++pass) {
    const int64_t first = col0 + pass * kWidth;
    if (first > row0 + kGroupRows - 1 || first >= r.n) break;
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
          float v = r.alpha * d[(pass * (kWidth / 8) + j) * 4 + 2 * half + e];
          if (r.beta != 0) v += r.beta * widened(add.v[e]);
          sum.v[e] = narrowed<Out>(v);
        }
        *reinterpret_cast<Pair<Out>*>(staging + (y + 8 * half) * kPitch + 8 * j + x) = sum;
      }
    }
    hopper::named_barrier(1 + group, kGroup);
    store_both(staging, kPitch, r.c + matrix * r.stride, r, row0, first, thread);
    hopper::named_barrier(1 + group, kGroup);
  }
}

template <class In, class Out>
__global__ void __launch_bounds__(kThreads, 1)
    symmetric_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                     const Result<Out> result) {
  SHERD_DYNAMIC_SHARED(unsigned char, memory);
  unsigned char* const stages =
      memory + (kAlignment - hopper::shared_address(memory) % kAlignment) % kAlignment;
  unsigned char* const staging = stages + kStages * kStageBytes;
  uint64_t* const full = reinterpret_cast<uint64_t*>(staging + 2 * kStagingBytes);
  uint64_t* const empty = full + kStages;
  const int group = static_cast<int>(threadIdx.x) / kGroup, thread = static_cast<int>(threadIdx.x) % kGroup;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      hopper::barrier_init(full + s, 1);
      hopper::barrier_init(empty + s, 2 * kGroup / 32);
    }
    hopper::barrier_init_done();
  }
  __syncthreads();
  const int64_t per_matrix = tiles_of(result.n);
  Ring ring;

  if (group == 2) {
    hopper::give_registers<40>();
    if (thread != 0) return;
    hopper::prefetch_map(&a);
    hopper::prefetch_map(&b);
    for (int64_t t = blockIdx.x; t < result.tiles; t += gridDim.x) {
      const Tile tile = tile_at(t % per_matrix);
      const int matrix = static_cast<int>(t / per_matrix);
      for (int64_t k = 0; k < result.depths; ++k, ring.advance()) {
        hopper::barrier_wait(empty + ring.stage, ring.parity ^ 1);  // passes at once in the first round
        hopper::barrier_arrive_expecting(full + ring.stage, kStageBytes);
        unsigned char* const stage = stages + ring.stage * kStageBytes;
        const int x = static_cast<int>(k) * kDepth;
        hopper::copy_box(stage, &a, x, tile.row * kRows, matrix, full + ring.stage);
        hopper::copy_box(stage + kABytes, &b, x, tile.col * kCols, matrix, full + ring.stage);
      }
    }
    return;
  }

  hopper::take_registers<232>();
  Out* const my_staging = reinterpret_cast<Out*>(staging + group * kStagingBytes);
  float d[128];
  for (int64_t t = blockIdx.x; t < result.tiles; t += gridDim.x) {
    const Tile tile = tile_at(t % per_matrix);
    int before = -1;  // the stage that the products still in flight read
    for (int64_t k = 0; k < result.depths; ++k, ring.advance()) {
      hopper::barrier_wait(full + ring.stage, ring.parity);
      const unsigned char* const stage = stages + ring.stage * kStageBytes;
      const uint64_t left = hopper::tile_descriptor(stage + group * kGroupRows * kDepth * 2);
      const uint64_t right = hopper::tile_descriptor(stage + kABytes);
      hopper::hold(d);
      hopper::products_fence();
#pragma unroll
      for (int part = 0; part < kDepth / 16; ++part)
        hopper::multiply_add(d, left + 2 * part, right + 2 * part, k > 0 || part > 0, In{});
      hopper::products_commit();
      hopper::products_wait<1>();
      hopper::hold(d);
      if (before >= 0 && thread % 32 == 0) hopper::barrier_arrive(empty + before);
      before = ring.stage;
    }
    hopper::products_wait<0>();
    hopper::hold(d);
    if (thread % 32 == 0) hopper::barrier_arrive(empty + before);
    finish_tile(d, my_staging, result, t / per_matrix,
                static_cast<int64_t>(tile.row) * kRows + group * kGroupRows,
                static_cast<int64_t>(tile.col) * kCols, group, thread);
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
  const int64_t apart = m.batch > 1 ? m.stride : m.rows * m.ld;  // a stride is asked for even of one matrix
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

template <class In, class Out>
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
  r.tiles = tiles_of(c.rows) * c.batch;
  r.alpha = static_cast<float>(terms.alpha), r.beta = static_cast<float>(terms.beta);
  const int64_t blocks = std::min<int64_t>(queue_of(ctx).chip().multiprocessors, r.tiles);
  launch(ctx, "symmetric_hopper", symmetric_kernel<In, Out>,
         Grid{dim3(static_cast<unsigned>(blocks)), dim3(kThreads), static_cast<size_t>(kSharedBytes)},
         map_of(encode, a, kRows), map_of(encode, b, kCols), r);
}

bool places(const Matrices& m) {
  const int64_t size = size_of(m.dtype);
  return aligned(m.data, 16) && m.ld * size % 16 == 0 && m.stride * size % 16 == 0;
}

}  // namespace

bool symmetric_hopper_available(const Chip& chip, Factor a, Factor b, const Terms& terms, const Matrices& c) {
  const DType in = a.of.dtype;
  return chip.capability == 90 && chip.shared_bytes >= kSharedBytes &&
         (in == DType::f16 || in == DType::bf16) && b.of.dtype == in &&
         (c.dtype == in || c.dtype == DType::f32) && !a.transposed &&
         (b.transposed || b.of.rows == b.of.cols) && places(a.of) && places(b.of) && places(c) &&
         (terms.beta == 0 || places(*terms.addend));
}

void symmetric_hopper(ExecutionContext& ctx, Factor a, Factor b, const Terms& terms, const Matrices& c) {
  auto with = [&](auto in) {
    using In = decltype(in);
    c.dtype == DType::f32 ? start<In, float>(ctx, a.of, b.of, terms, c)
                          : start<In, In>(ctx, a.of, b.of, terms, c);
  };
  a.of.dtype == DType::f16 ? with(__half{}) : with(__nv_bfloat16{});
}

}  // namespace sherd::cuda
