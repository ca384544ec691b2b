#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/kernels/orthogonalize/orthogonalize.h>

#include <algorithm>

#include "newton_schulz.h"
#include "products.h"

namespace sherd::cuda {
namespace {

/// Returns the memory where a product works on a tensor: in place, or in a padded copy where rows or matrices
/// do not begin at multiples of 16 bytes. Either way the product is the same to the bit.
Matrices workable(Carver& carver, const Matrices& tensor) {
  return regular(tensor) ? tensor : carver.matrices(tensor.dtype, tensor.batch, tensor.rows, tensor.cols);
}

void read_in(ExecutionContext& ctx, const Matrices& work, const Matrices& tensor) {
  if (work.data != tensor.data) transform(ctx, work, tensor);
}
void write_out(ExecutionContext& ctx, const Matrices& tensor, const Matrices& work) {
  if (work.data != tensor.data) transform(ctx, tensor, work);
}

void clear_flags(ExecutionContext& ctx, int32_t* flags, int64_t count) {
  ElementwiseKernels::cuda()->fill(ctx, {flags, DType::i32}, count, 0);
}

}  // namespace

void gram_product(ExecutionContext& ctx, const GramProductArgs& a) {
  const int64_t n = a.contract_rows ? a.cols : a.rows, k = a.contract_rows ? a.rows : a.cols;
  if (a.batch * n == 0) return;
  if (k == 0) return ElementwiseKernels::cuda()->fill(ctx, {a.gram, DType::f32}, a.batch * n * n, 0);
  const Matrices x = dense(a.x, DType::f32, a.batch, a.rows, a.cols);
  const Matrices gram = dense(a.gram, DType::f32, a.batch, n, n);
  struct Work {
    Matrices x, gram;
  };
  const Work w = carve(ctx, [&](Carver& carver) {
    const Matrices read = workable(carver, x);
    return Work{read, workable(carver, gram)};
  });
  read_in(ctx, w.x, x);
  symmetric_product(ctx, {w.x, a.contract_rows}, {w.x, !a.contract_rows}, {}, w.gram);
  write_out(ctx, gram, w.gram);
}

void gram_iterate(ExecutionContext& ctx, const GramIterateArgs& a) {
  if (a.batch == 0) return;
  const DType working = a.options.working;
  const Matrices gram = dense(a.gram, DType::f32, a.batch, a.n, a.n);
  const Matrices q = dense(a.q, DType::f32, a.batch, a.n, a.n);
  struct Work {
    GramSquares squares;
    double *scale, *squared;
    int32_t* status;
  };
  const Work w = carve(ctx, [&](Carver& carver) {
    const GramSquares squares = GramSquares::of(carver, working, a.batch, a.n);
    double* const scale = carver.array<double>(a.batch);
    double* const squared = carver.array<double>(a.batch);
    return Work{squares, scale, squared, a.status ? a.status : carver.array<int32_t>(a.batch)};
  });
  const bool first = a.first == 0;
  if (first) {
    normalise_gram(ctx, gram, a.options.eps, w.scale, w.squared, w.status);
  } else if (!a.status) {
    clear_flags(ctx, w.status, a.batch);
  }
  transform(ctx, w.squares.r, gram, {.scale = first ? w.squared : nullptr});
  const std::span<const Coefficients> steps(a.options.steps.data() + a.first,
                                            static_cast<size_t>(a.last - a.first));
  transform(ctx, q, gram_polynomial(ctx, w.squares, steps),
            {.scale = first ? w.scale : nullptr, .status = w.status});
  clear_failed(ctx, q, w.status);
}

void gram_apply(ExecutionContext& ctx, const GramApplyArgs& a) {
  const int64_t n = a.contract_rows ? a.cols : a.rows;
  if (a.batch * a.rows * a.cols == 0) return;
  const Matrices x = dense(a.x, DType::f32, a.batch, a.rows, a.cols);
  const Matrices q = dense(a.q, DType::f32, a.batch, n, n);
  const Matrices out = dense(a.out, DType::f32, a.batch, a.rows, a.cols);
  struct Work {
    Matrices x, q, out;
    int32_t* live;
  };
  const Work w = carve(ctx, [&](Carver& carver) {
    const Matrices left = workable(carver, x), middle = workable(carver, q), result = workable(carver, out);
    return Work{left, middle, result, carver.array<int32_t>(a.batch)};
  });
  read_in(ctx, w.x, x);
  read_in(ctx, w.q, q);
  a.contract_rows ? product(ctx, {w.x}, {w.q}, {}, w.out) : product(ctx, {w.q}, {w.x}, {}, w.out);
  write_out(ctx, out, w.out);
  clear_flags(ctx, w.live, a.batch);
  mark_live(ctx, q, w.live);
  clear_dead(ctx, out, w.live);
}

}  // namespace sherd::cuda
