#include "polar.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include <sherd/base/error.h>
#include <sherd/kernels/device/cpu/tasks.h>

#include "lapack.h"

namespace sherd::cpu {
namespace {

/// Elements of LAPACK's work array, by its own answer.
double work_elements(int m, int n, int k) {
  int info = 0, lwork = -1;
  double best = 0;
  dgesdd_("S", &m, &n, nullptr, &m, nullptr, nullptr, &m, nullptr, &k, &best, &lwork, nullptr, &info, 1);
  return best;
}

int64_t scratch_of(int64_t rows, int64_t cols, int64_t work) {
  const int64_t smaller = std::min(rows, cols);
  const int64_t doubles = rows * cols + smaller + smaller * (rows + cols) + work;
  return doubles * 8 + 8 * smaller * 4;
}

}  // namespace

int64_t polar_scratch(int64_t rows, int64_t cols) {
  const double work =
      work_elements(static_cast<int>(cols), static_cast<int>(rows), static_cast<int>(std::min(rows, cols)));
  return scratch_of(rows, cols, static_cast<int64_t>(work));
}

void polar_factor(ExecutionContext& ctx, int64_t rows, int64_t cols, const float* in, float* out) {
  constexpr int64_t kLargest = std::numeric_limits<int>::max();
  const int64_t size = rows * cols, smaller = std::min(rows, cols), larger = std::max(rows, cols);
  OneThread one;
  auto refuse = [&] {
    throw NotSupported(fmt::format(
        "orthogonalize: a {} x {} matrix is too large for LAPACK's singular values; use newton_schulz", rows,
        cols));
  };
  if (larger > kLargest) refuse();
  // LAPACK sees the row-major matrix as its transpose, whose polar factor is the transpose of ours.
  const int m = static_cast<int>(cols), n = static_cast<int>(rows), k = static_cast<int>(smaller);
  const double best = work_elements(m, n, k);
  if (best > static_cast<double>(kLargest)) refuse();
  int info = 0, lwork = static_cast<int>(best);

  double* next = static_cast<double*>(ctx.scratch(scratch_of(rows, cols, lwork)));
  auto take = [&](int64_t count) { return std::exchange(next, next + count); };
  double *a = take(size), *s = take(smaller), *u = take(smaller * cols), *vt = take(smaller * rows),
         *work = take(lwork);
  std::copy_n(in, size, a);
  dgesdd_("S", &m, &n, a, &m, s, u, &m, vt, &k, work, &lwork, reinterpret_cast<int*>(next), &info, 1);
  if (info != 0)
    throw Error(fmt::format("orthogonalize: LAPACK's dgesdd failed on a {} x {} matrix with info {} ({})",
                            rows, cols, info, info > 0 ? "no convergence" : "wrong argument"));

  const double cut = static_cast<double>(larger) * 0x1p-23 * s[0];
  const int rank = static_cast<int>(std::count_if(s, s + smaller, [&](double v) { return v >= cut; }));
  const double unit = 1, zero = 0;
  dgemm_("N", "N", &m, &n, &rank, &unit, u, &m, vt, &k, &zero, a, &m, 1, 1);
  std::transform(a, a + size, out, [](double v) { return static_cast<float>(v); });
}

}  // namespace sherd::cpu
