#include <cmath>

#include <sherd/kernels/ops/norm.h>

#include "cpu.h"
#include "parallel.h"

namespace sherd::cpu {
namespace {

int64_t row_grain(const RmsNormArgs& a) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, a.cols));
}

template <class T>
float forward_row(T* y, const T* x, const T* w, int64_t cols, float eps) {
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t c = 0; c < cols; ++c) squares += float(x[c]) * float(x[c]);
  const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(cols) + eps);
#pragma omp simd
  for (int64_t c = 0; c < cols; ++c) store(y[c], float(x[c]) * rstd * float(w[c]));
  return rstd;
}

template <class T>
void backward_row(T* dx, const T* dy, const T* x, const T* w, float rstd, int64_t cols) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t c = 0; c < cols; ++c) dot += float(dy[c]) * float(w[c]) * float(x[c]);
  const float mean = dot * rstd * rstd / static_cast<float>(cols);
#pragma omp simd
  for (int64_t c = 0; c < cols; ++c) store(dx[c], rstd * (float(dy[c]) * float(w[c]) - float(x[c]) * mean));
}

constexpr int64_t kBlock = 64;

/// sum[c] = sum over rows, in increasing order, of dy * x * rstd for `width` <= kBlock columns.
template <class T>
void weight_block(float* sum, const RmsNormArgs& a, int64_t first, int64_t width) {
  const T *x = a.x.as<T>() + first, *dy = a.dy.as<T>() + first;
  const float* rstd = a.rstd;
  const int64_t rows = a.rows, cols = a.cols;
  std::fill_n(sum, kBlock, 0.0f);
  for (int64_t r = 0; r < rows; ++r, x += cols, dy += cols) {
    const float factor = rstd[r];
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) sum[c] += float(dy[c]) * (float(x[c]) * factor);
  }
}

/// Threads share columns out, so that the sum over rows is the same for any number of threads.
template <class T>
void backward_weight(ExecutionContext& ctx, const RmsNormArgs& a) {
  parallel_for(ctx, a.cols, kBlock, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kBlock) {
      const int64_t width = std::min(kBlock, end - first);
      float sum[kBlock];
      weight_block<T>(sum, a, first, width);
      for (int64_t c = 0; c < width; ++c) a.dw[first + c] += sum[c];
    }
  });
}

}  // namespace

void rms_norm_forward(ExecutionContext& ctx, const RmsNormArgs& a) {
  with_activation(a.x.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(ctx, a.rows, row_grain(a), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        a.rstd[r] =
            forward_row(a.y.as<T>() + r * a.cols, a.x.as<T>() + r * a.cols, a.w.as<T>(), a.cols, a.eps);
    });
  });
}

void rms_norm_backward(ExecutionContext& ctx, const RmsNormArgs& a) {
  with_activation(a.x.dtype, [&](auto type) {
    using T = decltype(type);
    backward_weight<T>(ctx, a);  // first: dx may be dy
    parallel_for(ctx, a.rows, row_grain(a), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        backward_row(a.dx.as<T>() + r * a.cols, a.dy.as<T>() + r * a.cols, a.x.as<T>() + r * a.cols,
                     a.w.as<T>(), a.rstd[r], a.cols);
    });
  });
}

}  // namespace sherd::cpu
