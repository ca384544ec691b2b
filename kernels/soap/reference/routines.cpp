#include <algorithm>
#include <cmath>
#include <utility>

#include <sherd/kernels/soap/reference/step.h>

namespace sherd::reference {
namespace {

void soap_product(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const double* a,
                  const double* b, double* c) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t p = 0; p < k; ++p)
        sum += (trans_a ? a[p * m + i] : a[i * k + p]) * (trans_b ? b[j * k + p] : b[p * n + j]);
      c[i * n + j] = sum;
    }
}

/// x = c x - s y, y = s x + c y, for `count` elements `stride` apart.
void rotate_pair(double* x, double* y, int64_t count, int64_t stride, double c, double s) {
  for (int64_t i = 0; i < count * stride; i += stride) {
    const double old = x[i];
    x[i] = c * old - s * y[i];
    y[i] = s * old + c * y[i];
  }
}

// Cyclic Jacobi: rotations zero the elements beside the diagonal, until they are rounding errors of the largest element.
void soap_eigenvectors(int64_t n, double* a, double* values, double* work) {
  double* v = work;
  std::fill_n(v, n * n, 0.0);
  for (int64_t i = 0; i < n; ++i) v[i * n + i] = 1;
  double largest = 0;
  for (int64_t i = 0; i < n * n; ++i) largest = std::max(largest, std::abs(a[i]));
  for (bool rotated = true; rotated;) {
    rotated = false;
    for (int64_t p = 0; p < n; ++p)
      for (int64_t q = p + 1; q < n; ++q) {
        if (!(std::abs(a[p * n + q]) > 1e-17 * largest)) continue;
        rotated = true;
        const double zeta = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
        const double t = std::copysign(1, zeta) / (std::abs(zeta) + std::sqrt(1 + zeta * zeta));
        const double c = 1 / std::sqrt(1 + t * t), s = c * t;
        rotate_pair(a + p * n, a + q * n, n, 1, c, s);
        rotate_pair(a + p, a + q, n, n, c, s);
        a[p * n + q] = a[q * n + p] = 0;
        rotate_pair(v + p * n, v + q * n, n, 1, c, s);
      }
  }
  for (int64_t i = 0; i < n; ++i) values[i] = a[i * n + i];
  std::copy_n(v, n * n, a);
}

// Householder reflections of the rows, which are the columns of the matrix that is factorized.
void soap_orthonormal_rows(int64_t n, double* a, double* work) {
  double* q = work;
  std::fill_n(q, n * n, 0.0);
  for (int64_t i = 0; i < n; ++i) q[i * n + i] = 1;
  const auto reflect = [&](double* row, const double* u, int64_t from, double factor) {
    double dot = 0;
    for (int64_t j = from; j < n; ++j) dot += row[j] * u[j];
    for (int64_t j = from; j < n; ++j) row[j] -= factor * dot * u[j];
  };
  double* u = work + n * n;
  for (int64_t i = 0; i < n; ++i) {
    double norm = 0;
    for (int64_t j = i; j < n; ++j) norm += a[i * n + j] * a[i * n + j];
    norm = std::sqrt(norm);
    if (norm == 0) continue;
    std::copy_n(a + i * n, n, u);
    u[i] += std::copysign(norm, u[i]);
    double square = 0;
    for (int64_t j = i; j < n; ++j) square += u[j] * u[j];
    for (int64_t r = i; r < n; ++r) reflect(a + r * n, u, i, 2 / square);
    for (int64_t r = 0; r < n; ++r) reflect(q + r * n, u, i, 2 / square);
  }
  // q holds the product of the reflections, whose columns are Q's.
  for (int64_t i = 0; i < n; ++i) {
    const double sign = a[i * n + i] < 0 ? -1 : 1;
    for (int64_t j = 0; j < n; ++j) u[j] = sign * q[j * n + i];
    std::copy_n(u, n, a + i * n);
  }
}

void soap_step(ExecutionContext& ctx, const SoapArgs& a) {
  soap_batch(a, soap_routines(), ctx.scratch(soap_scratch_bytes(a)));
}

}  // namespace

const SoapRoutines& soap_routines() {
  static constexpr SoapRoutines routines{soap_product, soap_eigenvectors, soap_orthonormal_rows};
  return routines;
}

}  // namespace sherd::reference

namespace sherd {

const SoapKernels* SoapKernels::reference() {
  static constexpr SoapKernels table{.soap_step = reference::soap_step, .soap_scratch = soap_scratch_bytes};
  return &table;
}

}  // namespace sherd
