#include "polar.h"

#include <algorithm>
#include <memory>
#include <vector>

#include <sherd/kernels/device/cuda/launch.h>
#include <sherd/kernels/device/cuda/queue.h>
#include <sherd/kernels/gemm/cuda_matmul.h>
#include <sherd/kernels/gemm/cuda_matrices.h>
#include <sherd/kernels/orthogonalize/orthogonalize.h>

// cuSOLVER's QR iteration (gesvd) rather than its faster gesvdp or an eigendecomposition of the Gram matrix:
// this is the oracle of the other methods, and small singular values must differ from zeros.
//
// It reads columns and wants at least as many rows as columns. A wide row-major matrix is that already, seen
// as its transpose M; a tall one is transposed. With M = U S V^T, memory holds U^T and V row by row.

namespace sherd::cuda {
namespace {

constexpr const char* kName = "orthogonalize (cuSOLVER's gesvd)";

/// Row j of ut becomes zero where s[j] is too small; all of it, with a note in *status, when the
/// decomposition failed.
__global__ void drop_directions_kernel(double* ut, const double* s, const int* info, int64_t rows,
                                       int64_t cols, double cut, int32_t* status) {
  const bool failed = *info != 0;
  if (failed && blockIdx.x == 0 && threadIdx.x == 0 && *status == 0)
    *status = static_cast<int32_t>(MatrixStatus::not_finite);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < rows * cols;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    if (failed || !(s[i / cols] >= cut * s[0])) ut[i] = 0;
}

struct Work {
  Matrices a, ut, v, product;
  double *s = nullptr, *partial = nullptr, *scale = nullptr;
  int* info = nullptr;
  char* device = nullptr;
};

}  // namespace

void polar_factor(ExecutionContext& ctx, const OrthogonalizeArgs& o) {
  const bool tall = o.rows > o.cols;
  const int64_t m = std::max(o.rows, o.cols), n = std::min(o.rows, o.cols), size = m * n;
  CudaQueue& queue = queue_of(ctx);
  const Solver& solver = queue.solver();
  size_t device_bytes = 0, host_bytes = 0;
  if (size > 0)
    check(cusolverDnXgesvd_bufferSize(solver.handle, solver.parameters, 'S', 'S', m, n, CUDA_R_64F, nullptr,
                                      m, CUDA_R_64F, nullptr, CUDA_R_64F, nullptr, m, CUDA_R_64F, nullptr, n,
                                      CUDA_R_64F, &device_bytes, &host_bytes),
          kName);
  const Work w = carve(ctx, [&](Carver& carver) {
    auto doubles = [&](int64_t rows, int64_t cols) {
      return dense(carver.array<double>(rows * cols), DType::f64, 1, rows, cols);
    };
    Work work{doubles(n, m), doubles(n, m), doubles(n, n), doubles(o.rows, o.cols)};
    work.s = carver.array<double>(n);
    work.partial = carver.array<double>(o.batch * norm_parts(work.a));
    work.scale = carver.array<double>(o.batch);
    work.info = carver.array<int>(1);
    work.device = carver.array<char>(static_cast<int64_t>(device_bytes));
    return work;
  });
  normalise(ctx, dense(o.in, DType::f32, o.batch, o.rows, o.cols), o.options.eps, w.partial, w.scale,
            o.status);
  if (size == 0) return;
  for (int64_t i = 0; i < o.batch; ++i) {
    const Matrices in = dense(o.in + i * size, DType::f32, 1, o.rows, o.cols);
    const Matrices out = dense(o.out + i * size, DType::f32, 1, o.rows, o.cols);
    int32_t* const status = o.status + i;
    auto host = std::make_shared<std::vector<char>>(host_bytes);
    widen(ctx, w.a, in, tall, status);
    check(cusolverDnXgesvd(solver.handle, solver.parameters, 'S', 'S', m, n, CUDA_R_64F, w.a.data, m,
                           CUDA_R_64F, w.s, CUDA_R_64F, w.ut.data, m, CUDA_R_64F, w.v.data, n, CUDA_R_64F,
                           w.device, device_bytes, host->data(), host_bytes, w.info),
          kName);
    ctx.keep(host);
    launch(ctx, "drop_directions", drop_directions_kernel, grid_for(n * m), static_cast<double*>(w.ut.data),
           w.s, w.info, n, m, static_cast<double>(m) * 0x1p-23, status);
    // M's factor is U V^T; the matrix's is that (tall) or its transpose.
    Matmul p{.trans_a = tall, .trans_b = tall, .m = o.rows, .n = o.cols, .k = n};
    p.in = p.out = DType::f64;
    const Operand ut{w.ut.data, m}, v{w.v.data, n};
    p.a = tall ? ut : v;
    p.b = tall ? v : ut;
    p.c = {w.product.data, o.cols};
    matmul(queue, p);
    transform(ctx, out, w.product, {.status = status});
    clear_failed(ctx, out, status);
  }
}

}  // namespace sherd::cuda
