#include "products.h"

#include <sherd/kernels/device/cuda/queue.h>
#include <sherd/kernels/gemm/cuda_matmul.h>

#include "symmetric.h"

namespace sherd::cuda {
namespace {

/// A block of the result.
struct Step {
  int64_t row, col, rows, cols;
};

Operand operand(const Matrices& m) { return {m.data, m.ld, m.stride}; }

/// Part [row, row + count) of a factor's rows, or of its columns.
Matrices rows_of(Factor f, int64_t row, int64_t count) {
  return f.transposed ? f.of.block(0, row, f.of.rows, count) : f.of.block(row, 0, count, f.of.cols);
}
Matrices cols_of(Factor f, int64_t col, int64_t count) {
  return f.transposed ? f.of.block(col, 0, count, f.of.cols) : f.of.block(0, col, f.of.rows, count);
}

Matmul matmul_of(Factor a, Factor b, const Terms& terms, const Matrices& c) {
  Matmul p{.trans_a = a.transposed, .trans_b = b.transposed, .m = c.rows, .n = c.cols, .k = a.cols()};
  p.batch = c.batch;
  p.nominal_batch = kNominalBatch;
  p.in = a.of.dtype;
  p.out = c.dtype;
  p.alpha = terms.alpha;
  p.beta = terms.beta;
  p.a = operand(a.of);
  p.b = operand(b.of);
  p.c = operand(c);
  if (terms.beta != 0) p.addend = operand(*terms.addend);
  return p;
}

/// The block of the product at `step`.
Matmul block_of(Factor a, Factor b, const Terms& terms, const Matrices& c, const Step& step) {
  const Matrices left = rows_of(a, step.row, step.rows), right = cols_of(b, step.col, step.cols);
  Matrices addend;
  Terms local = terms;
  if (terms.beta != 0) {
    addend = terms.addend->block(step.row, step.col, step.rows, step.cols);
    local.addend = &addend;
  }
  return matmul_of({left, a.transposed}, {right, b.transposed}, local,
                   c.block(step.row, step.col, step.rows, step.cols));
}

/// Two blocks of equal shape of a single matrix, as one batch.
void pair(CudaQueue& queue, Matmul first, const Matmul& second) {
  auto stride = [](const Operand& from, const Operand& to, DType type) {
    return (static_cast<char*>(to.data) - static_cast<char*>(from.data)) / size_of(type);
  };
  first.a.stride = stride(first.a, second.a, first.in);
  first.b.stride = stride(first.b, second.b, first.in);
  first.c.stride = stride(first.c, second.c, first.out);
  if (first.beta != 0) first.addend.stride = stride(first.addend, second.addend, first.out);
  first.batch = 2;
  matmul(queue, first);
}

}  // namespace

bool regular(const Matrices& m) {
  const int64_t size = size_of(m.dtype);
  return aligned(m.data, 16) && m.ld == padded_ld(m.cols, m.dtype) && m.stride * size % 16 == 0;
}

void product(ExecutionContext& ctx, Factor a, Factor b, const Terms& terms, const Matrices& c) {
  if (c.batch * c.rows * c.cols > 0) matmul(queue_of(ctx), matmul_of(a, b, terms, c));
}

void lower_blocks(ExecutionContext& ctx, Factor a, Factor b, const Terms& terms, const Matrices& c) {
  CudaQueue& queue = queue_of(ctx);
  const int64_t n = c.rows, block = (n / 4 + 63) / 64 * 64, rest = n - 3 * block;
  auto multiply = [&](const Step& step) { matmul(queue, block_of(a, b, terms, c, step)); };
  // Fewer calls either way: pairs of blocks for a single matrix, block by block for a batch.
  auto both = [&](const Step& x, const Step& y) {
    if (c.batch == 1 && x.rows == y.rows && x.cols == y.cols)
      return pair(queue, block_of(a, b, terms, c, x), block_of(a, b, terms, c, y));
    multiply(x);
    multiply(y);
  };
  multiply({2 * block, 0, block + rest, 2 * block});
  both({0, 0, 2 * block, block}, {2 * block, 2 * block, block + rest, block});
  both({block, block, block, block}, {3 * block, 3 * block, rest, rest});
}

void symmetric_product(ExecutionContext& ctx, Factor a, Factor b, const Terms& terms, const Matrices& c) {
  if (c.batch * c.rows == 0) return;
  CudaQueue& queue = queue_of(ctx);
  if (queue.chip().symmetric == SymmetricProducts::hopper &&
      symmetric_hopper_available(queue.chip(), a, b, terms, c))
    return symmetric_hopper(ctx, a, b, terms, c);
  if (c.rows < kBlocksFrom) {
    matmul(queue, matmul_of(a, b, terms, c));
  } else {
    lower_blocks(ctx, a, b, terms, c);
  }
  mirror(ctx, c);
}

}  // namespace sherd::cuda
