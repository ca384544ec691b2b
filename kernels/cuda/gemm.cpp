#include "cuda.h"
#include "matmul.h"
#include "matrices.h"
#include "queue.h"

namespace sherd::cuda {
namespace {

void multiply(ExecutionContext& ctx, const GemmArgs& g, MatmulEpilogue epilogue) {
  if (g.k == 0 && epilogue == MatmulEpilogue::none) return scale_matrix(ctx, g.c, g.m, g.n, g.ldc, g.beta);
  CudaQueue& queue = queue_of(ctx);
  Matmul p{.trans_a = g.trans_a, .trans_b = g.trans_b, .m = g.m, .n = g.n, .k = g.k};
  p.in = g.a.dtype;
  p.out = g.c.dtype;
  p.tf32 = g.a.dtype == DType::f32 && queue.chip().tf32;
  p.alpha = g.alpha;
  p.beta = g.beta;
  p.a = {g.a.data, g.lda};
  p.b = {g.b.data, g.ldb};
  p.c = p.addend = {g.c.data, g.ldc};
  p.epilogue = epilogue;
  if (epilogue != MatmulEpilogue::none) p.bias = g.bias.data, p.pre = g.pre.data;
  matmul(queue, p);
}

MatmulEpilogue epilogue_of(const GemmArgs& g) {
  const bool bias = g.bias.data, pre = g.pre.data;
  if (!g.gelu) return bias ? MatmulEpilogue::bias : MatmulEpilogue::none;
  if (pre) return bias ? MatmulEpilogue::gelu_pre_bias : MatmulEpilogue::gelu_pre;
  return bias ? MatmulEpilogue::gelu_bias : MatmulEpilogue::gelu;
}

/// cuBLASLt's fused epilogues want rows of pre at multiples of 8 elements and aligned vectors, and there may
/// be none for operands whose rows begin anywhere. In f32 they save little and differ from the kernels that
/// take the other shapes.
bool fusible(const GemmArgs& g) {
  const auto eights = [](const auto&... sizes) { return ((sizes % 8 == 0) && ...); };
  return g.a.dtype == DType::bf16 && g.k > 0 && eights(g.n, g.lda, g.ldb, g.ldc) && aligned(g.a.data, 16) &&
         aligned(g.b.data, 16) && aligned(g.bias.data, 16) && aligned(g.pre.data, 16) &&
         aligned(g.c.data, 16);
}

}  // namespace

void gemm(ExecutionContext& ctx, const GemmArgs& g) {
  if (g.m == 0 || g.n == 0) return;
  const MatmulEpilogue epilogue = epilogue_of(g);
  if (epilogue == MatmulEpilogue::none || fusible(g)) return multiply(ctx, g, epilogue);
  GemmArgs plain = g;
  if (g.pre.data) plain.c = g.pre;
  multiply(ctx, plain, MatmulEpilogue::none);
  if (g.bias.data) add_bias(ctx, plain.c, g.bias, g.m, g.n);
  if (g.gelu) gelu_forward(ctx, g.c, plain.c, g.m * g.n);
}

}  // namespace sherd::cuda
