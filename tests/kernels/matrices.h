// Matrices of doubles, made and iterated the plain way: what the orthogonalizers are compared with.
#pragma once

#include <sherd/kernels/orthogonalize/orthogonalize.h>

#include <algorithm>
#include <cmath>

#include "lab.h"

namespace sherd::test {

struct Doubles {
  int64_t rows = 0, cols = 0;
  std::vector<double> data = std::vector<double>(static_cast<size_t>(rows * cols));
  double& at(int64_t i, int64_t j) { return data[static_cast<size_t>(i * cols + j)]; }
  double at(int64_t i, int64_t j) const { return data[static_cast<size_t>(i * cols + j)]; }
};

inline Doubles widened(int64_t rows, int64_t cols, const Floats& values) {
  Doubles m{rows, cols};
  std::copy(values.begin(), values.end(), m.data.begin());
  return m;
}

inline Floats narrowed(const Doubles& m) {
  Floats f;
  for (double v : m.data) f.push_back(static_cast<float>(v));
  return f;
}

inline Doubles flipped(const Doubles& m) {
  Doubles t{m.cols, m.rows};
  for (int64_t i = 0; i < m.rows; ++i)
    for (int64_t j = 0; j < m.cols; ++j) t.at(j, i) = m.at(i, j);
  return t;
}

inline Doubles times(const Doubles& a, const Doubles& b) {
  Doubles c{a.rows, b.cols};
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t p = 0; p < a.cols; ++p)
      for (int64_t j = 0; j < b.cols; ++j) c.at(i, j) += a.at(i, p) * b.at(p, j);
  return c;
}

inline double frobenius(const Doubles& m) {
  double squares = 0;
  for (double v : m.data) squares += v * v;
  return std::sqrt(squares);
}

/// ||got - want||_F / ||want||_F; infinity when anything is not finite.
inline double relative_error(const Floats& got, const Doubles& want) {
  if (got.size() != want.data.size()) return INFINITY;
  Doubles difference = want;
  for (size_t i = 0; i < got.size(); ++i) difference.data[i] -= double(got[i]);
  const double error = frobenius(difference), norm = frobenius(want);
  return std::isfinite(error) ? (norm > 0 ? error / norm : error) : INFINITY;
}

/// [n, k] with orthonormal columns: Gram-Schmidt, twice, on a Gaussian matrix.
inline Doubles orthonormal(int64_t n, int64_t k, unsigned seed) {
  Doubles m = widened(n, k, normal(n * k, seed));
  for (int64_t j = 0; j < k; ++j) {
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t p = 0; p < j; ++p) {
        double dot = 0;
        for (int64_t i = 0; i < n; ++i) dot += m.at(i, p) * m.at(i, j);
        for (int64_t i = 0; i < n; ++i) m.at(i, j) -= dot * m.at(i, p);
      }
    double squares = 0;
    for (int64_t i = 0; i < n; ++i) squares += m.at(i, j) * m.at(i, j);
    for (int64_t i = 0; i < n; ++i) m.at(i, j) /= std::sqrt(squares);
  }
  return m;
}

/// A matrix with the given singular values, and its polar factor.
struct Known {
  Doubles matrix, polar;
};
inline Known with_singular_values(int64_t rows, int64_t cols, const std::vector<double>& values,
                                  unsigned seed) {
  const int64_t k = static_cast<int64_t>(values.size());
  Doubles u = orthonormal(rows, k, seed);
  const Doubles vt = flipped(orthonormal(cols, k, seed + 1));
  Known known{{}, times(u, vt)};
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < k; ++j) u.at(i, j) *= values[static_cast<size_t>(j)];
  known.matrix = times(u, vt);
  return known;
}

/// `count` values from 1 down to `smallest`, evenly spaced in their logarithms.
inline std::vector<double> log_uniform(int64_t count, double smallest) {
  std::vector<double> v;
  for (int64_t i = 0; i < count; ++i)
    v.push_back(std::pow(smallest, count > 1 ? double(i) / double(count - 1) : 0));
  return v;
}

/// X0 = U/(||U||_F + eps), then X <- aX + b(XX^T)X + c(XX^T)^2 X for every step.
inline Doubles iterated(Doubles x, const std::vector<Coefficients>& steps, double eps = 1e-7f) {
  if (x.rows > x.cols) return flipped(iterated(flipped(x), steps, eps));
  const double norm = frobenius(x);
  for (double& v : x.data) v /= norm + eps;
  for (const Coefficients& step : steps) {
    const Doubles gram = times(x, flipped(x)), third = times(gram, x), fifth = times(gram, third);
    for (size_t i = 0; i < x.data.size(); ++i)
      x.data[i] =
          double(step.a) * x.data[i] + double(step.b) * third.data[i] + double(step.c) * fifth.data[i];
  }
  return x;
}

/// One matrix through ops::orthogonalize.
struct Orthogonalized {
  Floats values;
  MatrixStatus status = MatrixStatus::fine;
};
inline Orthogonalized orthogonalized(Lab& lab, int64_t rows, int64_t cols, const Floats& values,
                                     const OrthogonalizeOptions& options) {
  const Tensor in = lab.tensor({rows, cols}, values), out = lab.full({rows, cols}, NAN);
  const Tensor status = lab.ints({1}, {-1});
  ops::orthogonalize(lab.s, out, in, status, options);
  EXPECT_EQ(bits(lab.floats(in)), bits(values)) << "the input changed";
  int32_t code = -1;
  ops::copy_to_host(lab.s, &code, status);
  return {lab.floats(out), static_cast<MatrixStatus>(code)};
}

}  // namespace sherd::test
