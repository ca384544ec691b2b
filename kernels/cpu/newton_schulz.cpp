#include <algorithm>
#include <cmath>

#include "cpu.h"
#include "sgemm.h"

namespace sherd::cpu {
namespace {

/// dst[cols, rows] = factor * src[rows, cols]^T, in tiles that stay in the cache.
void transpose(float* dst, const float* src, int64_t rows, int64_t cols, float factor) {
  constexpr int64_t kTile = 32;
  for (int64_t i0 = 0; i0 < rows; i0 += kTile)
    for (int64_t j0 = 0; j0 < cols; j0 += kTile)
      for (int64_t j = j0; j < std::min(cols, j0 + kTile); ++j)
        for (int64_t i = i0; i < std::min(rows, i0 + kTile); ++i)
          dst[j * rows + i] = factor * src[i * cols + j];
}

double frobenius_norm(const float* x, int64_t count) {
  double squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < count; ++i) squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return std::sqrt(squares);
}

int64_t padded(int64_t floats) { return (floats + 31) / 32 * 32; }

}  // namespace

void newton_schulz(ExecutionContext& ctx, const NewtonSchulzArgs& args) {
  const bool tall = args.rows > args.cols;
  const int64_t m = std::min(args.rows, args.cols), n = std::max(args.rows, args.cols), size = m * n;
  if (size == 0) return;
  float* x = static_cast<float*>(ctx.scratch((2 * padded(size) + 2 * padded(m * m)) * 4));
  float *next = x + padded(size), *gram = next + padded(size), *polynomial = gram + padded(m * m);

  const float factor = static_cast<float>(1 / (frobenius_norm(args.in, size) + args.eps));
  if (tall) {
    transpose(x, args.in, args.rows, args.cols, factor);
  } else {
    for (int64_t i = 0; i < size; ++i) x[i] = factor * args.in[i];
  }
  for (int step = 0; step < args.steps; ++step) {
    const auto [a, b, c] = args.coefficients[step];
    sgemm(false, true, m, m, n, 1, x, n, x, n, 0, gram, m);
    std::copy_n(gram, m * m, polynomial);
    sgemm(false, false, m, m, m, c, gram, m, gram, m, b, polynomial, m);  // b G + c G^2
    std::copy_n(x, size, next);
    sgemm(false, false, m, n, m, 1, polynomial, m, x, n, a, next, n);
    std::swap(x, next);
  }
  if (tall) {
    transpose(args.out, x, m, n, 1);
  } else {
    std::copy_n(x, size, args.out);
  }
}

}  // namespace sherd::cpu
