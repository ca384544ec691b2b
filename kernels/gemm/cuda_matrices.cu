#include "cuda_matrices.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <string>

#include <sherd/kernels/device/cuda/launch.h>
#include <sherd/kernels/orthogonalize/orthogonalize_options.h>

namespace sherd::cuda {
namespace {

constexpr int kVector = 4;  // elements per thread
constexpr int kAcross = 64, kDown = 4;
constexpr int32_t kNotFinite = static_cast<int32_t>(MatrixStatus::not_finite);

__device__ inline float widened(float v) { return v; }
__device__ inline float widened(__half v) { return __half2float(v); }
__device__ inline float widened(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline double widened(double v) { return v; }
__device__ inline void store(float& to, float v) { to = v; }
__device__ inline void store(__half& to, float v) { to = __float2half_rn(v); }
__device__ inline void store(__nv_bfloat16& to, float v) { to = __float2bfloat16_rn(v); }

__device__ inline bool is_finite(float v) { return fabsf(v) <= 3.4028234663852886e38f; }

/// a / b, by the fast 32-bit division where both fit.
__device__ inline int64_t quotient(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<int64_t>(static_cast<uint32_t>(a) / static_cast<uint32_t>(b));
  return a / b;
}

template <class T>
struct alignas(sizeof(T) * kVector) Vector {
  T v[kVector];
};

template <class To, class From>
struct TransformTerms {
  To* to;
  const From* from;
  int64_t rows, cols, total_rows, to_ld, from_ld, to_stride, from_stride;
  const double* scale;
  float diagonal;
  int32_t* status;
  bool vector;
};

/// One thread: four neighbouring columns of a row, then of the rows gridDim.y * kDown further.
template <class To, class From>
__global__ void transform_kernel(TransformTerms<To, From> t) {
  const int64_t col = (static_cast<int64_t>(blockIdx.x) * kAcross + threadIdx.x) * kVector;
  if (col >= t.cols) return;
  const int count = static_cast<int>(t.cols - col < kVector ? t.cols - col : kVector);
  const bool vector = t.vector && count == kVector;
  for (int64_t line = static_cast<int64_t>(blockIdx.y) * kDown + threadIdx.y; line < t.total_rows;
       line += static_cast<int64_t>(gridDim.y) * kDown) {
    const int64_t matrix = quotient(line, t.rows), row = line - matrix * t.rows;
    const From* from = t.from + matrix * t.from_stride + row * t.from_ld + col;
    To* to = t.to + matrix * t.to_stride + row * t.to_ld + col;
    Vector<From> in;
    if (vector) {
      in = *reinterpret_cast<const Vector<From>*>(from);
    } else {
#pragma unroll
      for (int e = 0; e < kVector; ++e) in.v[e] = e < count ? from[e] : from[0];
    }
    const double scale = t.scale ? t.scale[matrix] : 1;
    Vector<To> out;
    bool finite = true;
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      float x = 0;
      if (!t.scale) {
        x = static_cast<float>(widened(in.v[e]));
      } else if (scale != 0) {
        x = static_cast<float>(scale * static_cast<double>(widened(in.v[e])));
      }
      if (col + e == row) x += t.diagonal;
      store(out.v[e], x);
      finite = finite && is_finite(static_cast<float>(widened(out.v[e])));
    }
    if (vector) {
      *reinterpret_cast<Vector<To>*>(to) = out;
    } else {
#pragma unroll
      for (int e = 0; e < kVector; ++e)
        if (e < count) to[e] = out.v[e];
    }
    if (t.status && !finite) t.status[matrix] = kNotFinite;
  }
}

template <class T>
bool vectors(const Matrices& m) {
  constexpr int64_t kBytes = sizeof(T) * kVector;
  const int64_t size = static_cast<int64_t>(sizeof(T));
  return reinterpret_cast<uintptr_t>(m.data) % kBytes == 0 && m.ld * size % kBytes == 0 &&
         m.stride * size % kBytes == 0;
}

Grid grid_of(const Matrices& m) {
  const int64_t lines = (m.batch * m.rows + kDown - 1) / kDown;
  return {dim3(static_cast<unsigned>((m.cols + kAcross * kVector - 1) / (kAcross * kVector)),
               static_cast<unsigned>(std::min<int64_t>(lines, 65535))),
          dim3(kAcross, kDown)};
}

template <class To, class From>
void start_transform(ExecutionContext& ctx, const Matrices& to, const Matrices& from, const Transform& how) {
  const TransformTerms<To, From> terms{static_cast<To*>(to.data),
                                       static_cast<const From*>(from.data),
                                       to.rows,
                                       to.cols,
                                       to.batch * to.rows,
                                       to.ld,
                                       from.ld,
                                       to.stride,
                                       from.stride,
                                       how.scale,
                                       how.diagonal,
                                       how.status,
                                       vectors<To>(to) && vectors<From>(from)};
  launch(ctx, "transform", transform_kernel<To, From>, grid_of(to), terms);
}

template <class F>
void with_type(DType t, F&& f) {
  switch (t) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(__nv_bfloat16{});
    case DType::f16:
      return f(__half{});
    default:
      throw NotSupported(std::string("transform: no matrices of ") + name_of(t));
  }
}

constexpr int kTile = 32, kTileRows = 8;

/// A tile through shared memory, so that both sides are read and written along their rows.
__global__ void widen_kernel(double* to, const float* from, bool transposed, int64_t rows, int64_t cols,
                             int64_t to_ld, int64_t from_ld, int64_t to_stride, int64_t from_stride,
                             int64_t batch, const int32_t* status) {
  __shared__ float tile[kTile][kTile + 1];
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * kTile,
                col0 = static_cast<int64_t>(blockIdx.x) * kTile;
  const int x = static_cast<int>(threadIdx.x);
  for (int64_t m = blockIdx.z; m < batch; m += gridDim.z) {
    const bool keep = status[m] == 0;
    for (int y = static_cast<int>(threadIdx.y); y < kTile; y += kTileRows)
      if (row0 + y < rows && col0 + x < cols)
        tile[y][x] = keep ? from[m * from_stride + (row0 + y) * from_ld + col0 + x] : 0.0f;
    __syncthreads();
    double* const matrix = to + m * to_stride;
    for (int y = static_cast<int>(threadIdx.y); y < kTile; y += kTileRows) {
      if (transposed && col0 + y < cols && row0 + x < rows)
        matrix[(col0 + y) * to_ld + row0 + x] = static_cast<double>(tile[x][y]);
      if (!transposed && row0 + y < rows && col0 + x < cols)
        matrix[(row0 + y) * to_ld + col0 + x] = static_cast<double>(tile[y][x]);
    }
    __syncthreads();
  }
}

constexpr int kMirror = 64;

/// Block b takes tile (i, j), j <= i, of the lower triangle.
template <class T>
__global__ void mirror_kernel(T* square, int64_t n, int64_t ld, int64_t stride, int64_t batch) {
  __shared__ T tile[kMirror][kMirror + 2];
  const int64_t b = blockIdx.x;
  int64_t i = static_cast<int64_t>((sqrt(8.0 * static_cast<double>(b) + 1) - 1) / 2);
  while (i * (i + 1) / 2 > b) --i;
  while ((i + 1) * (i + 2) / 2 <= b) ++i;
  const int64_t j = b - i * (i + 1) / 2, row0 = i * kMirror, col0 = j * kMirror;
  const int rows = static_cast<int>(n - row0 < kMirror ? n - row0 : kMirror);
  const bool diagonal = i == j;
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  for (int64_t m = blockIdx.y; m < batch; m += gridDim.y) {
    const T* const below = square + m * stride + row0 * ld + col0;
    T* const above = square + m * stride + col0 * ld + row0;
#pragma unroll 8
    for (int r = y; r < kMirror; r += kDown)
      if (r < rows && (!diagonal || x < r)) tile[r][x] = below[r * ld + x];
    __syncthreads();
#pragma unroll 8
    for (int c = y; c < kMirror; c += kDown)
      if (x < rows && (!diagonal || c < x)) above[c * ld + x] = tile[x][c];
    __syncthreads();
  }
}

/// Matrices of `size` elements whose `flags` say so become zeros: an entry that is 0 (dead) or is not
/// (failed).
__global__ void clear_kernel(float* data, const int32_t* flags, bool when_zero, int64_t size, int64_t batch) {
  for (int64_t m = blockIdx.y; m < batch; m += gridDim.y) {
    if ((flags[m] == 0) != when_zero) continue;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < size;
         i += static_cast<int64_t>(gridDim.x) * blockDim.x)
      data[m * size + i] = 0;
  }
}

__global__ void live_kernel(const float* data, int32_t* live, int64_t size, int64_t batch) {
  for (int64_t m = blockIdx.y; m < batch; m += gridDim.y) {
    bool found = false;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < size;
         i += static_cast<int64_t>(gridDim.x) * blockDim.x)
      found = found || data[m * size + i] != 0;
    if (found) live[m] = 1;
  }
}

/// Few blocks per matrix: most often they have nothing to do.
Grid grid_of_flags(const Matrices& m) {
  const int64_t blocks = std::clamp<int64_t>((m.rows * m.cols + 1023) / 1024, 1, 132);
  return {dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(std::min<int64_t>(m.batch, 65535))),
          dim3(256)};
}

template <class T>
__global__ void scale_kernel(T* c, int64_t m, int64_t n, int64_t ld, float beta) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < m * n;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    T& at = c[i / n * ld + i % n];
    store(at, beta == 0 ? 0.0f : beta * widened(at));
  }
}

}  // namespace

void transform(ExecutionContext& ctx, const Matrices& to, const Matrices& from, const Transform& how) {
  if (to.batch * to.rows * to.cols == 0) return;
  if (from.dtype == DType::f64)
    return with_type(to.dtype, [&](auto t) { start_transform<decltype(t), double>(ctx, to, from, how); });
  with_type(from.dtype, [&](auto f) {
    using From = decltype(f);
    with_type(to.dtype, [&](auto t) { start_transform<decltype(t), From>(ctx, to, from, how); });
  });
}

void widen(ExecutionContext& ctx, const Matrices& to, const Matrices& from, bool transposed,
           const int32_t* status) {
  if (from.batch * from.rows * from.cols == 0) return;
  const auto tiles = [](int64_t n) { return static_cast<unsigned>((n + kTile - 1) / kTile); };
  if (tiles(from.rows) > 65535)
    throw NotSupported("orthogonalize: svd of a matrix with " + std::to_string(from.rows) +
                       " rows; 2097120 is the most on this device, use newton_schulz");
  const Grid grid{
      dim3(tiles(from.cols), tiles(from.rows), static_cast<unsigned>(std::min<int64_t>(from.batch, 65535))),
      dim3(kTile, kTileRows)};
  launch(ctx, "widen", widen_kernel, grid, static_cast<double*>(to.data),
         static_cast<const float*>(from.data), transposed, from.rows, from.cols, to.ld, from.ld, to.stride,
         from.stride, from.batch, status);
}

void mirror(ExecutionContext& ctx, const Matrices& m) {
  if (m.batch == 0 || m.rows < 2) return;
  const int64_t tiles = (m.rows + kMirror - 1) / kMirror;
  const Grid grid{dim3(static_cast<unsigned>(tiles * (tiles + 1) / 2),
                       static_cast<unsigned>(std::min<int64_t>(m.batch, 65535))),
                  dim3(kMirror, kDown)};
  with_type(m.dtype, [&](auto type) {
    using T = decltype(type);
    launch(ctx, "mirror", mirror_kernel<T>, grid, static_cast<T*>(m.data), m.rows, m.ld, m.stride, m.batch);
  });
}

void clear_failed(ExecutionContext& ctx, const Matrices& m, const int32_t* status) {
  if (m.batch * m.rows * m.cols == 0) return;
  launch(ctx, "clear_failed", clear_kernel, grid_of_flags(m), static_cast<float*>(m.data), status, false,
         m.rows * m.cols, m.batch);
}

void clear_dead(ExecutionContext& ctx, const Matrices& m, const int32_t* live) {
  if (m.batch * m.rows * m.cols == 0) return;
  launch(ctx, "clear_dead", clear_kernel, grid_of_flags(m), static_cast<float*>(m.data), live, true,
         m.rows * m.cols, m.batch);
}

void mark_live(ExecutionContext& ctx, const Matrices& m, int32_t* live) {
  if (m.batch * m.rows * m.cols == 0) return;
  launch(ctx, "mark_live", live_kernel, grid_of_flags(m), static_cast<const float*>(m.data), live,
         m.rows * m.cols, m.batch);
}

void scale_matrix(ExecutionContext& ctx, Ref c, int64_t m, int64_t n, int64_t ld, float beta) {
  with_type(c.dtype, [&](auto type) {
    using T = decltype(type);
    launch(ctx, "scale_matrix", scale_kernel<T>, grid_for(m * n), static_cast<T*>(c.data), m, n, ld, beta);
  });
}

}  // namespace sherd::cuda
