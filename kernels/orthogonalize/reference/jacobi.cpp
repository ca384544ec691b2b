#include <algorithm>
#include <cmath>

#include "matrix.h"

namespace sherd::reference {

namespace {

/// Rotates columns p and q of m by the angle of cosine c and sine s.
void rotate(Matrix& m, int64_t p, int64_t q, double c, double s) {
  for (int64_t i = 0; i < m.rows; ++i) {
    const double x = m.at(i, p), y = m.at(i, q);
    m.at(i, p) = c * x - s * y;
    m.at(i, q) = s * x + c * y;
  }
}

double dot(const Matrix& m, int64_t p, int64_t q) {
  double sum = 0;
  for (int64_t i = 0; i < m.rows; ++i) sum += m.at(i, p) * m.at(i, q);
  return sum;
}

}  // namespace

// Hestenes: rotate pairs of columns of W = AV until all are orthogonal; then W = US.
Matrix jacobi_polar(const Matrix& a, double cut) {
  if (a.cols > a.rows) return transposed(jacobi_polar(transposed(a), cut));
  Matrix w = a, v = identity(a.cols);
  double largest = 0;
  for (double x : w.data) largest = std::max(largest, std::abs(x));
  if (largest > 0)
    for (double& x : w.data) x /= largest;  // no square over- or underflows
  for (bool rotated = true; rotated;) {
    rotated = false;
    for (int64_t p = 0; p < w.cols; ++p) {
      for (int64_t q = p + 1; q < w.cols; ++q) {
        const double pp = dot(w, p, p), qq = dot(w, q, q), pq = dot(w, p, q);
        // Columns of rounding errors alone (1e-30 in squares) need no direction.
        if (std::abs(pq) <= 1e-14 * std::sqrt(pp * qq) || std::abs(pq) < 1e-30) continue;
        rotated = true;
        const double zeta = (qq - pp) / (2 * pq);
        const double t = std::copysign(1, zeta) / (std::abs(zeta) + std::sqrt(1 + zeta * zeta));
        const double c = 1 / std::sqrt(1 + t * t), s = c * t;
        rotate(w, p, q, c, s);
        rotate(v, p, q, c, s);
      }
    }
  }
  std::vector<double> singular;
  for (int64_t j = 0; j < w.cols; ++j) singular.push_back(std::sqrt(dot(w, j, j)));
  const double top = singular.empty() ? 0 : *std::max_element(singular.begin(), singular.end());
  for (int64_t j = 0; j < w.cols; ++j) {
    const double s = singular[static_cast<size_t>(j)];
    for (int64_t i = 0; i < w.rows; ++i) w.at(i, j) = s > 0 && s >= cut * top ? w.at(i, j) / s : 0;
  }
  return product(w, transposed(v));
}

}  // namespace sherd::reference
