#include <sherd/kernels/gemm/gemm.h>

#include <dnnl.h>

#include <algorithm>
#include <string>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/parallel.h>
#include <sherd/kernels/device/cpu/tasks.h>
#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/kernels/epilogue/epilogue.h>

#include "cpu_bf16.h"
#include "cpu_sgemm.h"

namespace sherd::cpu {

void sgemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
           int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) c[i * ldc + j] = beta == 0 ? 0.0f : beta * c[i * ldc + j];
    return;
  }
  const dnnl_status_t status =
      dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  if (status != dnnl_success) {
    throw Error("dnnl_sgemm of m " + std::to_string(m) + ", n " + std::to_string(n) + ", k " +
                std::to_string(k) + " failed with status " + std::to_string(static_cast<int>(status)) +
                "; out of memory, or leading dimensions too small");
  }
}

namespace {

void widen(ExecutionContext& ctx, float* dst, const bf16* src, int64_t rows, int64_t cols, int64_t ld) {
  parallel_for(ctx, rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, cols)),
               [=](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i)
                   for (int64_t j = 0; j < cols; ++j) dst[i * cols + j] = float(src[i * ld + j]);
               });
}

void narrow(ExecutionContext& ctx, bf16* dst, const float* src, int64_t rows, int64_t cols, int64_t ld) {
  parallel_for(ctx, rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, cols)),
               [=](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i)
                   for (int64_t j = 0; j < cols; ++j) dst[i * ld + j] = bf16(src[i * cols + j]);
               });
}

/// One operand as fp32: in place, or (bf16) as a dense copy carved from the scratch.
struct Operand {
  int64_t rows, cols, ld;
  bool copied;
  float* data;
  int64_t scratch() const { return copied ? (rows * cols + 31) / 32 * 32 : 0; }
};

Operand operand(Ref r, int64_t rows, int64_t cols, int64_t ld) {
  if (r.dtype == DType::f32) return {rows, cols, ld, false, r.as<float>()};
  return {rows, cols, std::max<int64_t>(1, cols), true, nullptr};
}

struct Operands {
  Operand a, b, c;
  int64_t scratch() const { return a.scratch() + b.scratch() + c.scratch(); }
};

Operands operands(const GemmArgs& g) {
  return {operand(g.a, g.trans_a ? g.k : g.m, g.trans_a ? g.m : g.k, g.lda),
          operand(g.b, g.trans_b ? g.n : g.k, g.trans_b ? g.k : g.n, g.ldb), operand(g.c, g.m, g.n, g.ldc)};
}

int64_t scratch(const GemmArgs& g, int threads) {
  if (g.m == 0 || g.n == 0) return 0;
  const Threads of_stream(threads);  // oneDNN's scratch memory grows with them
  return scratch_bf16(g).value_or(4 * operands(g).scratch());
}

void multiply(ExecutionContext& ctx, const GemmArgs& g) {
  if (multiply_bf16(ctx, g)) return;
  auto [a, b, c] = operands(g);
  if (const int64_t floats = a.scratch() + b.scratch() + c.scratch(); floats > 0) {
    float* next = static_cast<float*>(ctx.scratch(floats * 4));
    for (Operand* o : {&a, &b, &c}) {
      if (o->copied) o->data = next;
      next += o->scratch();
    }
  }
  if (a.copied) widen(ctx, a.data, g.a.as<bf16>(), a.rows, a.cols, g.lda);
  if (b.copied) widen(ctx, b.data, g.b.as<bf16>(), b.rows, b.cols, g.ldb);
  if (c.copied && g.beta != 0) widen(ctx, c.data, g.c.as<bf16>(), c.rows, c.cols, g.ldc);
  sgemm(g.trans_a, g.trans_b, g.m, g.n, g.k, g.alpha, a.data, a.ld, b.data, b.ld, g.beta, c.data, c.ld);
  if (c.copied) narrow(ctx, g.c.as<bf16>(), c.data, c.rows, c.cols, g.ldc);
}

void gemm(ExecutionContext& ctx, const GemmArgs& g) {
  if (g.m == 0 || g.n == 0) return;
  GemmArgs plain = g;
  if (g.gelu && g.pre.data) plain.c = g.pre;
  multiply(ctx, plain);
  const EpilogueKernels& epilogue = *EpilogueKernels::cpu();
  if (g.bias.data) epilogue.add_bias(ctx, plain.c, g.bias, g.m, g.n);
  if (g.gelu) epilogue.gelu_forward(ctx, g.c, plain.c, g.m * g.n);
  if (g.residual.data) ElementwiseKernels::cpu()->add(ctx, g.c, g.residual, g.c, g.m * g.n);
  if (g.gelu_backward) epilogue.gelu_backward(ctx, g.c, g.c, g.pre, g.m * g.n);
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const GemmKernels* GemmKernels::cpu() {
  static constexpr GemmKernels table{.gemm = cpu::gemm, .scratch = cpu::scratch};
  return &table;
}

}  // namespace sherd
