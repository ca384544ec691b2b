#include <sherd/kernels/orthogonalize/orthogonalize.h>

#include <algorithm>

#include "newton_schulz.h"
#include "polar.h"

// Passes over a matrix besides the products: one reads it for its norm and status (4 bytes per element), one
// reads it again, applies 1 / (norm + eps) and writes the working type (4 + 2 in 16 bits), and one reads the
// result, writes f32 and looks for what is not finite (2 + 4). Nothing is read back by the host, so that the
// whole can be captured in a CUDA graph.

namespace sherd::cuda {

// gram.cu
void gram_product(ExecutionContext&, const GramProductArgs&);
void gram_iterate(ExecutionContext&, const GramIterateArgs&);
void gram_apply(ExecutionContext&, const GramApplyArgs&);

namespace {

/// Larger batches are worked off in parts of about so much scratch memory.
constexpr int64_t kScratch = int64_t{2} << 30;

struct Work {
  Iteration iteration;
  double* partial;
  double* scale;

  static Work of(Carver& carver, const OrthogonalizeArgs& a, int64_t batch) {
    Work w;
    w.iteration = Iteration::of(carver, a.options, batch, a.rows, a.cols);
    w.partial = carver.array<double>(batch * norm_parts(dense(nullptr, DType::f32, 1, a.rows, a.cols)));
    w.scale = carver.array<double>(batch);
    return w;
  }
};

void iterate(ExecutionContext& ctx, const OrthogonalizeArgs& a, int64_t begin, int64_t batch, void* memory) {
  const int64_t size = a.rows * a.cols;
  const Matrices in = dense(a.in + begin * size, DType::f32, batch, a.rows, a.cols);
  const Matrices out = dense(a.out + begin * size, DType::f32, batch, a.rows, a.cols);
  int32_t* const status = a.status + begin;
  Carver carver(memory);
  const Work w = Work::of(carver, a, batch);
  normalise(ctx, in, a.options.eps, w.partial, w.scale, status);
  if (size == 0) return;
  transform(ctx, w.iteration.x, in, {.scale = w.scale});
  transform(ctx, out, newton_schulz(ctx, w.iteration, a.options), {.status = status});
  clear_failed(ctx, out, status);
}

void orthogonalize(ExecutionContext& ctx, const OrthogonalizeArgs& a) {
  if (a.batch == 0) return;
  if (a.options.method == Orthogonalizer::svd) return polar_factor(ctx, a);
  Carver one;
  Work::of(one, a, 1);
  const int64_t part = std::clamp<int64_t>(kScratch / one.bytes(), 1, a.batch);
  Carver all;
  Work::of(all, a, part);
  void* const memory = ctx.scratch(all.bytes());
  for (int64_t begin = 0; begin < a.batch; begin += part)
    iterate(ctx, a, begin, std::min(part, a.batch - begin), memory);
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const OrthogonalizeKernels* OrthogonalizeKernels::cuda() {
  static constexpr OrthogonalizeKernels table{
      .orthogonalize = cuda::orthogonalize,
      .gram_product = cuda::gram_product,
      .gram_iterate = cuda::gram_iterate,
      .gram_apply = cuda::gram_apply,
  };
  return &table;
}

}  // namespace sherd
