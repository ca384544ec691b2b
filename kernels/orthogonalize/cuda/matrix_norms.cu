// Matrix norms at the start of orthogonalization: sums in double whose order depends on the sizes alone.
#include <algorithm>

#include <sherd/kernels/device/cuda/launch.h>
#include <sherd/kernels/gemm/cuda_matrices.h>
#include <sherd/kernels/orthogonalize/orthogonalize_options.h>

namespace sherd::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kPart = 16 * 1024;  // elements of one block

/// Sum over the block's threads in one fixed tree; valid in thread 0.
__device__ double block_sum(double mine, double* shared) {
  shared[threadIdx.x] = mine;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) shared[threadIdx.x] += shared[threadIdx.x + half];
  }
  return shared[0];
}

__device__ inline double squared(float v) { return static_cast<double>(v) * static_cast<double>(v); }

/// partial[matrix, part] of blockIdx.x = matrix * parts + part. Thread t takes elements 4t..4t+3 of every
/// 1024.
__global__ void squares_kernel(const float* in, int64_t size, int64_t parts, double* partial, bool vector) {
  __shared__ double shared[kThreads];
  const int64_t matrix = blockIdx.x / parts, part = blockIdx.x % parts;
  const float* from = in + matrix * size;
  const int64_t end = part * kPart + kPart < size ? part * kPart + kPart : size;
  double sum = 0;
#pragma unroll 4
  for (int64_t i = part * kPart + threadIdx.x * 4; i < end; i += kThreads * 4) {
    if (vector && i + 4 <= end) {
      const float4 v = *reinterpret_cast<const float4*>(from + i);
      sum += squared(v.x);
      sum += squared(v.y);
      sum += squared(v.z);
      sum += squared(v.w);
    } else {
      for (int e = 0; e < 4 && i + e < end; ++e) sum += squared(from[i + e]);
    }
  }
  const double total = block_sum(sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

__device__ void finish(double squares, float eps, int64_t matrix, double* scale, double* scale_squared,
                       int32_t* status) {
  const bool finite = fabs(squares) <= 1.7976931348623157e308;
  const MatrixStatus found = !finite        ? MatrixStatus::not_finite
                             : squares == 0 ? MatrixStatus::zero
                                            : MatrixStatus::fine;
  const double factor = found == MatrixStatus::fine ? 1 / (sqrt(squares) + static_cast<double>(eps)) : 0;
  scale[matrix] = factor;
  if (scale_squared) scale_squared[matrix] = factor * factor;
  status[matrix] = static_cast<int32_t>(found);
}

/// Block = matrix; sums `count` values that are `step` apart.
template <class T>
__global__ void normalise_kernel(const T* values, int64_t count, int64_t step, int64_t stride, float eps,
                                 double* scale, double* scale_squared, int32_t* status) {
  __shared__ double shared[kThreads];
  const int64_t matrix = blockIdx.x;
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads)
    sum += static_cast<double>(values[matrix * stride + i * step]);
  const double total = block_sum(sum, shared);
  if (threadIdx.x == 0) finish(total, eps, matrix, scale, scale_squared, status);
}

Grid block_each(int64_t count) { return {dim3(static_cast<unsigned>(count)), dim3(kThreads)}; }

}  // namespace

int64_t norm_parts(const Matrices& m) { return (m.rows * m.cols + kPart - 1) / kPart; }

void normalise(ExecutionContext& ctx, const Matrices& m, float eps, double* partial, double* scale,
               int32_t* status) {
  const int64_t size = m.rows * m.cols, parts = norm_parts(m);
  const bool vector = reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && size % 4 == 0;
  launch(ctx, "matrix norms", squares_kernel, block_each(m.batch * parts), static_cast<const float*>(m.data),
         size, parts, partial, vector);
  launch(ctx, "matrix norms", normalise_kernel<double>, block_each(m.batch), partial, parts, 1, parts, eps,
         scale, nullptr, status);
}

void normalise_gram(ExecutionContext& ctx, const Matrices& gram, float eps, double* scale,
                    double* scale_squared, int32_t* status) {
  launch(ctx, "matrix traces", normalise_kernel<float>, block_each(gram.batch),
         static_cast<const float*>(gram.data), gram.rows, gram.ld + 1, gram.stride, eps, scale, scale_squared,
         status);
}

}  // namespace sherd::cuda
