#include <sherd/kernels/gemm/gemm.h>

#include <sherd/kernels/device/cuda/queue.h>
#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/kernels/epilogue/epilogue.h>

#include "cuda_matmul.h"
#include "cuda_matrices.h"

namespace sherd::cuda {
namespace {

MatmulEpilogue epilogue_of(const GemmArgs& g) {
  const bool bias = g.bias.data, pre = g.pre.data;
  if (g.gelu_backward) return MatmulEpilogue::gelu_backward;
  if (!g.gelu) return bias ? MatmulEpilogue::bias : MatmulEpilogue::none;
  if (pre) return bias ? MatmulEpilogue::gelu_pre_bias : MatmulEpilogue::gelu_pre;
  return bias ? MatmulEpilogue::gelu_bias : MatmulEpilogue::gelu;
}

/// The product alone.
Matmul product_of(const GemmArgs& g, const Chip& chip) {
  Matmul p{.trans_a = g.trans_a, .trans_b = g.trans_b, .m = g.m, .n = g.n, .k = g.k};
  p.in = g.a.dtype;
  p.out = g.c.dtype;
  p.tf32 = g.a.dtype == DType::f32 && chip.tf32;
  p.alpha = g.alpha;
  p.beta = g.beta;
  p.a = {g.a.data, g.lda};
  p.b = {g.b.data, g.ldb};
  p.c = p.addend = {g.c.data, g.ldc};
  return p;
}

void multiply(ExecutionContext& ctx, const GemmArgs& g) {
  if (g.k == 0) return scale_matrix(ctx, g.c, g.m, g.n, g.ldc, g.beta);
  CudaQueue& queue = queue_of(ctx);
  matmul(queue, product_of(g, queue.chip()));
}

/// The product with its epilogue and the residual, or nothing and false where cuBLASLt has no such thing.
bool multiply_fused(ExecutionContext& ctx, const GemmArgs& g) {
  CudaQueue& queue = queue_of(ctx);
  Matmul p = product_of(g, queue.chip());
  if (g.residual.data) p.addend.data = g.residual.data, p.beta = 1;
  p.epilogue = epilogue_of(g);
  p.bias = g.bias.data;
  p.pre = g.pre.data;
  return try_matmul(queue, p);
}

/// Returns whether the call has more than a product, and one cuBLASLt call may do all of it. Its fused
/// epilogues need rows of pre at multiples of 8 elements and aligned vectors. Operands whose rows begin
/// anywhere may have no algorithm. cuBLASLt is asked for its other limits (multiply_fused). In f32 they save
/// little and differ from the kernels for other shapes.
bool fusible(const GemmArgs& g) {
  const auto eights = [](const auto&... sizes) { return ((sizes % 8 == 0) && ...); };
  const bool more = g.residual.data || epilogue_of(g) != MatmulEpilogue::none;
  return more && g.a.dtype == DType::bf16 && g.c.dtype == DType::bf16 && g.k > 0 &&
         eights(g.n, g.lda, g.ldb, g.ldc) && aligned(g.a.data, 16) && aligned(g.b.data, 16) &&
         aligned(g.bias.data, 16) && aligned(g.pre.data, 16) && aligned(g.residual.data, 16) &&
         aligned(g.c.data, 16);
}

void gemm(ExecutionContext& ctx, const GemmArgs& g) {
  if (g.m == 0 || g.n == 0) return;
  if (fusible(g) && multiply_fused(ctx, g)) return;
  GemmArgs plain = g;
  if (g.gelu && g.pre.data) plain.c = g.pre;
  multiply(ctx, plain);
  const EpilogueKernels& epilogue = *EpilogueKernels::cuda();
  if (g.bias.data) epilogue.add_bias(ctx, plain.c, g.bias, g.m, g.n);
  if (g.gelu) epilogue.gelu_forward(ctx, g.c, plain.c, g.m * g.n);
  if (g.residual.data) ElementwiseKernels::cuda()->add(ctx, g.c, g.residual, g.c, g.m * g.n);
  if (g.gelu_backward) epilogue.gelu_backward(ctx, g.c, g.c, g.pre, g.m * g.n);
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const GemmKernels* GemmKernels::cuda() {
  static constexpr GemmKernels table{.gemm = cuda::gemm};
  return &table;
}

}  // namespace sherd
