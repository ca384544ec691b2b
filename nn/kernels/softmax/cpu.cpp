#include <sherd/nn/kernels/softmax/softmax.h>

#include <limits>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/narrow.h>
#include <sherd/kernels/device/cpu/parallel.h>
#include <sherd/kernels/device/cpu/vector_math.h>

namespace sherd::cpu {
namespace {

template <class T>
void forward_row(T* y, const T* x, int64_t cols) {
  float max = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : max)
  for (int64_t c = 0; c < cols; ++c) max = float(x[c]) > max ? float(x[c]) : max;
  double sum = 0;  // of rows as long as a vocabulary
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < cols; ++c) sum += MathFor<T>::exp(float(x[c]) - max);
  const auto factor = static_cast<float>(1 / sum);
  round_each(y, cols, [=](int64_t c) { return MathFor<T>::exp(float(x[c]) - max) * factor; });
}

template <class T>
void backward_row(T* dx, const T* dy, const T* y, int64_t cols) {
  double products = 0;
#pragma omp simd reduction(+ : products)
  for (int64_t c = 0; c < cols; ++c) products += float(y[c]) * float(dy[c]);
  const auto dot = static_cast<float>(products);
  round_each(dx, cols, [=](int64_t c) { return float(y[c]) * (float(dy[c]) - dot); });
}

/// Calls f(the first element of a row) for every row.
template <class F>
void for_rows(ExecutionContext& ctx, const SoftmaxArgs& a, F f) {
  parallel_for(ctx, a.rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, a.cols)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t r = begin; r < end; ++r) f(r * a.cols);
               });
}

void softmax_forward(ExecutionContext& ctx, const SoftmaxArgs& a) {
  with_activation(a.x.dtype, [&](auto type) {
    using T = decltype(type);
    for_rows(ctx, a, [&](int64_t row) { forward_row(a.y.as<T>() + row, a.x.as<T>() + row, a.cols); });
  });
}

void softmax_backward(ExecutionContext& ctx, const SoftmaxArgs& a) {
  with_activation(a.y.dtype, [&](auto type) {
    using T = decltype(type);
    for_rows(ctx, a, [&](int64_t row) {
      backward_row(a.dx.as<T>() + row, a.dy.as<T>() + row, a.y.as<T>() + row, a.cols);
    });
  });
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const SoftmaxKernels* SoftmaxKernels::cpu() {
  static constexpr SoftmaxKernels table{
      .softmax_forward = cpu::softmax_forward,
      .softmax_backward = cpu::softmax_backward,
  };
  return &table;
}

}  // namespace sherd
