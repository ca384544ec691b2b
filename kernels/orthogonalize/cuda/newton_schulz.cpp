#include "newton_schulz.h"

#include <utility>

#include <sherd/kernels/orthogonalize/orthogonalize_options.h>

#include "products.h"

namespace sherd::cuda {
namespace {

bool tall(const Matrices& x) { return x.rows > x.cols; }

/// The Gram matrix of the short side.
void gram_of(ExecutionContext& ctx, const Matrices& x, const Matrices& r) {
  symmetric_product(ctx, {x, tall(x)}, {x, !tall(x)}, {}, r);
}

/// to = px (wide) or xp (tall), plus beta x.
void apply(ExecutionContext& ctx, const Matrices& p, const Matrices& x, double beta, const Matrices& to) {
  const Terms terms{.beta = beta, .addend = &x};
  tall(x) ? product(ctx, {x}, {p}, terms, to) : product(ctx, {p}, {x}, terms, to);
}

Matrices standard_form(ExecutionContext& ctx, Iteration it, std::span<const Coefficients> steps) {
  const Matrices &r = it.squares.r, &z = it.squares.z;
  for (const auto& [a, b, c] : steps) {
    gram_of(ctx, it.x, r);
    symmetric_product(ctx, {r}, {r}, {.alpha = c, .beta = b, .addend = &r}, z);
    apply(ctx, z, it.x, a, it.y);
    std::swap(it.x, it.y);
  }
  return it.x;
}

Matrices gram_form(ExecutionContext& ctx, Iteration it, const OrthogonalizeOptions& o) {
  const std::span<const Coefficients> steps = o.steps;
  for (size_t begin = 0, part = 0; begin < steps.size(); ++part) {
    const size_t end = part < o.restarts.size() ? static_cast<size_t>(o.restarts[part]) : steps.size();
    gram_of(ctx, it.x, it.squares.r);
    apply(ctx, gram_polynomial(ctx, it.squares, steps.subspan(begin, end - begin)), it.x, 0, it.y);
    std::swap(it.x, it.y);
    begin = end;
  }
  return it.x;
}

}  // namespace

GramSquares GramSquares::of(Carver& carver, DType working, int64_t batch, int64_t n) {
  auto square = [&] { return carver.matrices(working, batch, n, n); };
  const Matrices r = square(), z = square(), rz = square(), q = square();
  return {r, z, rz, q, square()};
}

Matrices gram_polynomial(ExecutionContext& ctx, GramSquares s, std::span<const Coefficients> steps) {
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto [a, b, c] = steps[i];
    auto times = [&, a = a](const Matrices& x, const Matrices& to) {  // x(Z + aI)
      symmetric_product(ctx, {x}, {s.z}, {.beta = a, .addend = &x}, to);
    };
    symmetric_product(ctx, {s.r}, {s.r}, {.alpha = c, .beta = b, .addend = &s.r}, s.z);
    if (i == 0) {
      transform(ctx, s.q, s.z, {.diagonal = a});
    } else {
      times(s.q, s.next);
      std::swap(s.q, s.next);
    }
    if (i + 1 == steps.size()) break;
    times(s.r, s.rz);
    times(s.rz, s.r);
  }
  return s.q;
}

Iteration Iteration::of(Carver& carver, const OrthogonalizeOptions& o, int64_t batch, int64_t rows,
                        int64_t cols) {
  const int64_t n = rows < cols ? rows : cols;
  Iteration it;
  it.x = carver.matrices(o.working, batch, rows, cols);
  it.y = carver.matrices(o.working, batch, rows, cols);
  if (o.form == IterationForm::gram) {
    it.squares = GramSquares::of(carver, o.working, batch, n);
  } else {
    it.squares.r = carver.matrices(o.working, batch, n, n);
    it.squares.z = carver.matrices(o.working, batch, n, n);
  }
  return it;
}

Matrices newton_schulz(ExecutionContext& ctx, Iteration it, const OrthogonalizeOptions& o) {
  return o.form == IterationForm::gram ? gram_form(ctx, it, o) : standard_form(ctx, it, o.steps);
}

}  // namespace sherd::cuda
