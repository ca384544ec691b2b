// Matrices in double, by rows, for the serial models that optimizers are compared with.
#pragma once

#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

namespace sherd::test {

using Doubles = std::vector<double>;

/// a [m x k] times b [k x n].
inline Doubles product(const Doubles& a, const Doubles& b, size_t m, size_t k, size_t n) {
  Doubles c(m * n, 0);
  for (size_t i = 0; i < m; ++i)
    for (size_t l = 0; l < k; ++l)
      for (size_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + l] * b[l * n + j];
  return c;
}

/// a [m x n] with rows and columns exchanged.
inline Doubles transposed(const Doubles& a, size_t m, size_t n) {
  Doubles t(a.size());
  for (size_t i = 0; i < m; ++i)
    for (size_t j = 0; j < n; ++j) t[j * m + i] = a[i * n + j];
  return t;
}

/// Frobenius norm.
inline double norm_of(const Doubles& x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}

/// Orthogonalizes x [m x n] by Muon's five Newton-Schulz steps (Keller Jordan's coefficients).
inline Doubles newton_schulz(Doubles x, size_t m, size_t n) {
  if (m > n) return transposed(newton_schulz(transposed(x, m, n), n, m), n, m);
  const double norm = norm_of(x) + 1e-7;
  for (double& v : x) v /= norm;
  for (int step = 0; step < 5; ++step) {
    const Doubles a = product(x, transposed(x, m, n), m, n, m);
    Doubles b = product(a, a, m, m, m);
    for (size_t i = 0; i < b.size(); ++i) b[i] = -4.7750 * a[i] + 2.0315 * b[i];
    const Doubles bx = product(b, x, m, m, n);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + bx[i];
  }
  return x;
}

}  // namespace sherd::test
