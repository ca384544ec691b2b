#include <sherd/kernels/gemm/gemm.h>

#include <sherd/kernels/device/reference/access.h>
#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/kernels/epilogue/epilogue.h>

namespace sherd::reference {
namespace {

void multiply(const GemmArgs& g) {
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.n; ++j) {
      double sum = 0;
      for (int64_t p = 0; p < g.k; ++p)
        sum += get(g.a, g.trans_a ? p * g.lda + i : i * g.lda + p) *
               get(g.b, g.trans_b ? j * g.ldb + p : p * g.ldb + j);
      const int64_t c = i * g.ldc + j;
      put(g.c, c, g.alpha * sum + (g.beta == 0 ? 0.0 : g.beta * get(g.c, c)));
    }
  }
}

void gemm(ExecutionContext& ctx, const GemmArgs& g) {
  GemmArgs plain = g;
  if (g.gelu && g.pre.data) plain.c = g.pre;
  multiply(plain);
  const EpilogueKernels& epilogue = *EpilogueKernels::reference();
  if (g.bias.data) epilogue.add_bias(ctx, plain.c, g.bias, g.m, g.n);
  if (g.gelu) epilogue.gelu_forward(ctx, g.c, plain.c, g.m * g.n);
  if (g.residual.data) ElementwiseKernels::reference()->add(ctx, g.c, g.residual, g.c, g.m * g.n);
  if (g.gelu_backward) epilogue.gelu_backward(ctx, g.c, g.c, g.pre, g.m * g.n);
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const GemmKernels* GemmKernels::reference() {
  static constexpr GemmKernels table{.gemm = reference::gemm};
  return &table;
}

}  // namespace sherd
