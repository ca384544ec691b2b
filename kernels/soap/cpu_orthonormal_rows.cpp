#include <sherd/kernels/soap/cpu_orthonormal_rows.h>

#include <algorithm>
#include <cmath>

#include <sherd/kernels/soap/cpu_dgemm.h>

namespace sherd::cpu {
namespace {

constexpr int64_t kPanel = 32;

double dot_of(const double* x, const double* y, int64_t count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += x[i] * y[i];
  return sum;
}

/// Makes the vectors of H_1 ... H_rows, which turn the rows [rows, cols] into L, replacing the rows, and t of
/// H_1 ... H_rows = 1 - V^T t V. signs[j] is -1 where row j of Q is the negative of what the reflections
/// give.
void reflect_panel(int64_t rows, int64_t cols, double* v, int64_t ld, double* t, double* signs) {
  for (int64_t j = 0; j < rows; ++j) {
    double* const x = v + j * ld;
    std::fill_n(x, j, 0.0);  // of L, which is not needed
    const double norm = std::sqrt(dot_of(x + j, x + j, cols - j));
    signs[j] = norm == 0 || std::signbit(x[j]) ? 1 : -1;
    x[j] += std::copysign(norm, x[j]);
    const double square = dot_of(x + j, x + j, cols - j), tau = square == 0 ? 0 : 2 / square;
    for (int64_t i = j + 1; i < rows; ++i) {
      double* const row = v + i * ld;
      const double factor = tau * dot_of(row + j, x + j, cols - j);
#pragma omp simd
      for (int64_t p = j; p < cols; ++p) row[p] -= factor * x[p];
    }
    double products[kPanel];
    for (int64_t i = 0; i < j; ++i) products[i] = dot_of(v + i * ld, x, cols);
    for (int64_t i = 0; i < j; ++i)
      t[i * kPanel + j] = -tau * dot_of(t + i * kPanel + i, products + i, j - i);
    for (int64_t i = j + 1; i < rows; ++i) t[i * kPanel + j] = 0;
    t[j * kPanel + j] = tau;
  }
}

/// x [count, cols] -= x V^T op(t) V; `work` has 2 * kPanel * count.
void apply_reflections(int64_t count, int64_t cols, double* x, int64_t ldx, int64_t rows, const double* v,
                       int64_t ldv, const double* t, bool transposed, double* work) {
  double* const turned = work + kPanel * count;
  dgemm(count, rows, cols, 1, {x, ldx, 1}, {v, 1, ldv}, 0, work, kPanel);
  const DoubleView factor = transposed ? DoubleView{t, 1, kPanel} : DoubleView{t, kPanel, 1};
  dgemm(count, rows, rows, 1, {work, kPanel, 1}, factor, 0, turned, kPanel);
  dgemm(count, cols, rows, -1, {turned, kPanel, 1}, {v, ldv, 1}, 1, x, ldx);
}

}  // namespace

void orthonormal_rows(int64_t n, double* a, double* work) {
  double *q = work, *t = q + n * n, *rest = t + kPanel * n, *signs = rest + 2 * kPanel * n;
  for (int64_t i = 0; i < n; i += kPanel) {
    const int64_t rows = std::min(kPanel, n - i), next = i + rows;
    reflect_panel(rows, n - i, a + i * n + i, n, t + i * kPanel, signs + i);
    apply_reflections(n - next, n - i, a + next * n + i, n, rows, a + i * n + i, n, t + i * kPanel, false,
                      rest);
  }
  // Q = H_n ... H_1, from the last panel on: what is left of and above it is still the identity.
  std::fill_n(q, n * n, 0.0);
  for (int64_t i = 0; i < n; ++i) q[i * n + i] = 1;
  for (int64_t i = (n - 1) / kPanel * kPanel; i >= 0; i -= kPanel)
    apply_reflections(n - i, n - i, q + i * n + i, n, std::min(kPanel, n - i), a + i * n + i, n,
                      t + i * kPanel, true, rest);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) a[i * n + j] = signs[i] * q[i * n + j];
}

}  // namespace sherd::cpu
