#include <sherd/nn/kernels/norm/norm.h>

#include <cmath>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/narrow.h>
#include <sherd/kernels/device/cpu/parallel.h>

namespace sherd::cpu {
namespace {

template <class T>
float squares_of(const T* x, int64_t cols) {
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t c = 0; c < cols; ++c) squares += float(x[c]) * float(x[c]);
  return squares;
}

template <class T>
float dot_of(const T* dy, const T* x, const T* w, int64_t cols) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t c = 0; c < cols; ++c) dot += float(dy[c]) * float(w[c]) * float(x[c]);
  return dot;
}

/// Sums x^2, or dy * w * x, over row r's columns here.
template <class T>
float own_sum(const RmsNormArgs& a, int64_t r, bool backward) {
  const T* const x = a.x.as<T>() + r * a.cols;
  return backward ? dot_of(a.dy.as<T>() + r * a.cols, x, a.w.as<T>(), a.cols) : squares_of(x, a.cols);
}

/// The same over all columns.
template <class T>
float whole_sum(const RmsNormArgs& a, int64_t r, bool backward) {
  return a.sums.data != nullptr ? a.sums.as<const float>()[r] : own_sum<T>(a, r, backward);
}

template <class T>
float forward_row(const RmsNormArgs& a, int64_t r) {
  T* const y = a.y.as<T>() + r * a.cols;
  const T *const x = a.x.as<T>() + r * a.cols, *const w = a.w.as<T>();
  const float rstd = 1.0f / std::sqrt(whole_sum<T>(a, r, false) / static_cast<float>(a.columns()) + a.eps);
  round_each(y, a.cols, [=](int64_t c) { return float(x[c]) * rstd * float(w[c]); });
  return rstd;
}

/// Row r of a matrix, or null.
template <class T>
const T* row_of(Ref matrix, int64_t r, int64_t cols) {
  return matrix.data == nullptr ? nullptr : matrix.as<const T>() + r * cols;
}

/// dx[c] = value(c), rounded, and the same plus addend[c] where that is not null. dx may be addend.
template <class T, class F>
void store_sums(T* dx, const T* addend, int64_t cols, F value) {
  if (addend == nullptr) return round_each(dx, cols, value);
  round_each(dx, cols, [&](int64_t c) {
    T rounded;
    store(rounded, value(c));
    return float(addend[c]) + float(rounded);
  });
}

template <class T>
void backward_row(const RmsNormArgs& a, int64_t r) {
  const T *const dy = a.dy.as<T>() + r * a.cols, *const x = a.x.as<T>() + r * a.cols, *const w = a.w.as<T>();
  const float rstd = a.rstd.as<float>()[r],
              mean = whole_sum<T>(a, r, true) * rstd * rstd / static_cast<float>(a.columns());
  store_sums(a.dx.as<T>() + r * a.cols, row_of<T>(a.addend, r, a.cols), a.cols,
             [&](int64_t c) { return rstd * (float(dy[c]) * float(w[c]) - float(x[c]) * mean); });
}

constexpr int64_t kBlock = 64;

/// sum[c] = sum over rows, in increasing order, of dy * x * rstd for `width` <= kBlock columns.
template <class T>
void weight_block(float* sum, const RmsNormArgs& a, int64_t first, int64_t width) {
  const T *x = a.x.as<T>() + first, *dy = a.dy.as<T>() + first;
  const float* rstd = a.rstd.as<float>();
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
      for (int64_t c = 0; c < width; ++c) a.dw.as<float>()[first + c] += sum[c];
    }
  });
}

void rms_norm_forward(ExecutionContext& ctx, const RmsNormArgs& a) {
  with_activation(a.x.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(ctx, a.rows, row_grain(a.cols), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) a.rstd.as<float>()[r] = forward_row<T>(a, r);
    });
  });
}

void rms_norm_sums(ExecutionContext& ctx, const RmsNormArgs& a) {
  with_activation(a.x.dtype, [&](auto type) {
    parallel_for(ctx, a.rows, row_grain(a.cols), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        a.sums.as<float>()[r] = own_sum<decltype(type)>(a, r, a.dy.data != nullptr);
    });
  });
}

void rms_norm_backward(ExecutionContext& ctx, const RmsNormArgs& a) {
  with_activation(a.x.dtype, [&](auto type) {
    using T = decltype(type);
    backward_weight<T>(ctx, a);  // first: dx may be dy
    parallel_for(ctx, a.rows, row_grain(a.cols), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) backward_row<T>(a, r);
    });
  });
}

struct Moments {
  float mean, rstd;
};

/// The mean first: differences from it keep the digits that the square of a large mean would take. Sums in double, for
/// a large mean takes digits of a sum in float, too, and how many depends on the order that the compiler chose.
template <class T>
Moments layer_norm_row(T* y, const T* x, const T* w, const T* bias, int64_t cols, float eps) {
  const auto n = static_cast<double>(cols);
  double sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < cols; ++c) sum += float(x[c]);
  const auto mean = static_cast<float>(sum / n);
#pragma omp simd reduction(+ : squares)
  for (int64_t c = 0; c < cols; ++c) squares += (float(x[c]) - mean) * (float(x[c]) - mean);
  const auto rstd = static_cast<float>(1 / std::sqrt(squares / n + eps));
  if (bias == nullptr) {
    round_each(y, cols, [=](int64_t c) { return (float(x[c]) - mean) * rstd * float(w[c]); });
  } else {
    round_each(y, cols,
               [=](int64_t c) { return (float(x[c]) - mean) * rstd * float(w[c]) + float(bias[c]); });
  }
  return {mean, rstd};
}

template <class T>
void layer_norm_backward_row(T* dx, const T* dy, const T* x, const T* w, const Moments& m, const T* addend,
                             int64_t cols) {
  const float mean = m.mean, rstd = m.rstd;
  double sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
  for (int64_t c = 0; c < cols; ++c) {
    const float g = float(dy[c]) * float(w[c]);
    sum += g;
    dot += g * ((float(x[c]) - mean) * rstd);
  }
  const auto n = static_cast<double>(cols);
  const auto mean_g = static_cast<float>(sum / n), mean_dot = static_cast<float>(dot / n);
  store_sums(dx, addend, cols, [&](int64_t c) {
    return rstd * (float(dy[c]) * float(w[c]) - mean_g - (float(x[c]) - mean) * rstd * mean_dot);
  });
}

/// dw[c] += sum over rows, in increasing order, of dy * (x - mean) * rstd. Threads share columns out, as above.
template <class T>
void layer_norm_weight(ExecutionContext& ctx, const LayerNormArgs& a) {
  const float *mean = a.mean.as<float>(), *rstd = a.rstd.as<float>();
  parallel_for(ctx, a.cols, kBlock, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kBlock) {
      const int64_t width = std::min(kBlock, end - first);
      float sum[kBlock] = {};
      for (int64_t r = 0; r < a.rows; ++r) {
        const T *x = a.x.as<T>() + r * a.cols + first, *dy = a.dy.as<T>() + r * a.cols + first;
        const float m = mean[r], s = rstd[r];
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) sum[c] += float(dy[c]) * ((float(x[c]) - m) * s);
      }
      for (int64_t c = 0; c < width; ++c) a.dw.as<float>()[first + c] += sum[c];
    }
  });
}

void layer_norm_forward(ExecutionContext& ctx, const LayerNormArgs& a) {
  with_activation(a.x.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(ctx, a.rows, row_grain(a.cols), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const Moments m = layer_norm_row(a.y.as<T>() + r * a.cols, a.x.as<T>() + r * a.cols, a.w.as<T>(),
                                         a.bias.as<const T>(), a.cols, a.eps);
        a.mean.as<float>()[r] = m.mean;
        a.rstd.as<float>()[r] = m.rstd;
      }
    });
  });
}

void layer_norm_backward(ExecutionContext& ctx, const LayerNormArgs& a) {
  with_activation(a.x.dtype, [&](auto type) {
    using T = decltype(type);
    layer_norm_weight<T>(ctx, a);  // first: dx may be dy
    parallel_for(ctx, a.rows, row_grain(a.cols), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        layer_norm_backward_row(
            a.dx.as<T>() + r * a.cols, a.dy.as<T>() + r * a.cols, a.x.as<T>() + r * a.cols, a.w.as<T>(),
            Moments{a.mean.as<float>()[r], a.rstd.as<float>()[r]}, row_of<T>(a.addend, r, a.cols), a.cols);
    });
  });
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const NormKernels* NormKernels::cpu() {
  static constexpr NormKernels table{
      .rms_norm_forward = cpu::rms_norm_forward,
      .rms_norm_backward = cpu::rms_norm_backward,
      .rms_norm_sums = cpu::rms_norm_sums,
      .layer_norm_forward = cpu::layer_norm_forward,
      .layer_norm_backward = cpu::layer_norm_backward,
  };
  return &table;
}

}  // namespace sherd
