#include <sherd/kernels/orthogonalize/orthogonalize.h>

#include <algorithm>
#include <cmath>

#include <sherd/kernels/device/reference/access.h>

#include "matrix.h"

namespace sherd::reference {
namespace {

MatrixStatus status_of(double squares) {
  if (!std::isfinite(squares)) return MatrixStatus::not_finite;
  return squares == 0 ? MatrixStatus::zero : MatrixStatus::fine;
}

bool finite(const Matrix& x) {
  return std::all_of(x.data.begin(), x.data.end(),
                     [](double v) { return std::isfinite(static_cast<float>(v)); });
}

/// Q = product of (aI + bR + cR^2) over steps [first, last), with R moving along.
Matrix iterate(Matrix r, const OrthogonalizeOptions& o, int first, int last) {
  Matrix q = kept(identity(r.rows), o.working);
  for (int step = first; step < last; ++step) {
    const double a = o.steps[static_cast<size_t>(step)].a, b = o.steps[static_cast<size_t>(step)].b,
                 c = o.steps[static_cast<size_t>(step)].c;
    const Matrix z = kept(sum(b, r, c, product(r, r)), o.working);
    q = kept(sum(1, product(q, z), a, q), o.working);
    const Matrix rz = kept(sum(1, product(r, z), a, r), o.working);
    r = kept(sum(1, product(rz, z), a, rz), o.working);
  }
  return q;
}

Matrix standard_form(Matrix x, const OrthogonalizeOptions& o) {
  for (const Coefficients& step : o.steps) {
    const Matrix gram = kept(product(x, transposed(x)), o.working);
    const Matrix polynomial = kept(sum(step.b, gram, step.c, product(gram, gram)), o.working);
    x = kept(sum(step.a, x, 1, product(polynomial, x)), o.working);
  }
  return x;
}

Matrix gram_form(Matrix x, const OrthogonalizeOptions& o) {
  std::vector<int> ends = o.restarts;
  ends.push_back(static_cast<int>(o.steps.size()));
  int begin = 0;
  for (int end : ends) {
    const Matrix gram = kept(product(x, transposed(x)), o.working);
    x = kept(product(iterate(gram, o, begin, end), x), o.working);
    begin = end;
  }
  return x;
}

Matrix newton_schulz(Matrix x, double squares, const OrthogonalizeOptions& o) {
  for (double& v : x.data) v /= std::sqrt(squares) + o.eps;
  const bool tall = x.rows > x.cols;
  if (tall) x = transposed(x);
  x = kept(x, o.working);
  x = o.form == IterationForm::gram ? gram_form(x, o) : standard_form(x, o);
  return tall ? transposed(x) : x;
}

void orthogonalize(ExecutionContext&, const OrthogonalizeArgs& a) {
  const int64_t size = a.rows * a.cols;
  for (int64_t i = 0; i < a.batch; ++i) {
    Matrix x = Matrix::of(a.in + i * size, a.rows, a.cols);
    double squares = 0;
    for (double v : x.data) squares += v * v;
    const MatrixStatus status = status_of(squares);
    a.status[i] = static_cast<int32_t>(status);
    if (status != MatrixStatus::fine) {
      x = Matrix{a.rows, a.cols};
    } else if (a.options.method == Orthogonalizer::svd) {
      x = jacobi_polar(x, static_cast<double>(std::max(a.rows, a.cols)) * 0x1p-23);
    } else {
      x = newton_schulz(x, squares, a.options);
      if (!finite(x)) {
        x = Matrix{a.rows, a.cols};
        a.status[i] = static_cast<int32_t>(MatrixStatus::not_finite);
      }
    }
    x.store(a.out + i * size);
  }
}

void gram_product(ExecutionContext&, const GramProductArgs& a) {
  const int64_t n = a.contract_rows ? a.cols : a.rows;
  for (int64_t i = 0; i < a.batch; ++i) {
    const Matrix x = Matrix::of(a.x + i * a.rows * a.cols, a.rows, a.cols), t = transposed(x);
    (a.contract_rows ? product(t, x) : product(x, t)).store(a.gram + i * n * n);
  }
}

void gram_iterate(ExecutionContext&, const GramIterateArgs& a) {
  const int64_t size = a.n * a.n;
  for (int64_t i = 0; i < a.batch; ++i) {
    Matrix r = Matrix::of(a.gram + i * size, a.n, a.n), q{a.n, a.n};
    double factor = 1;
    if (a.first == 0) {
      double trace = 0;
      for (int64_t d = 0; d < a.n; ++d) trace += r.at(d, d);
      const MatrixStatus status = status_of(trace);
      a.status[i] = static_cast<int32_t>(status);
      factor = status == MatrixStatus::fine ? 1 / (std::sqrt(trace) + a.options.eps) : 0;
    }
    if (factor != 0) {
      r = kept(sum(factor * factor, r, 0, r), a.options.working);
      q = iterate(r, a.options, a.first, a.last);
      q = sum(factor, q, 0, q);
      if (!finite(q)) {
        q = Matrix{a.n, a.n};
        if (a.status) a.status[i] = static_cast<int32_t>(MatrixStatus::not_finite);
      }
    }
    q.store(a.q + i * size);
  }
}

void gram_apply(ExecutionContext&, const GramApplyArgs& a) {
  const int64_t n = a.contract_rows ? a.cols : a.rows, size = a.rows * a.cols;
  for (int64_t i = 0; i < a.batch; ++i) {
    const Matrix x = Matrix::of(a.x + i * size, a.rows, a.cols), q = Matrix::of(a.q + i * n * n, n, n);
    Matrix out{a.rows, a.cols};
    if (std::any_of(q.data.begin(), q.data.end(), [](double v) { return v != 0; }))
      out = a.contract_rows ? product(x, q) : product(q, x);
    out.store(a.out + i * size);
  }
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const OrthogonalizeKernels* OrthogonalizeKernels::reference() {
  static constexpr OrthogonalizeKernels table{
      .orthogonalize = reference::orthogonalize,
      .gram_product = reference::gram_product,
      .gram_iterate = reference::gram_iterate,
      .gram_apply = reference::gram_apply,
  };
  return &table;
}

}  // namespace sherd
