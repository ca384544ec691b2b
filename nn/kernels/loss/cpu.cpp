#include <sherd/nn/kernels/loss/loss.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/narrow.h>
#include <sherd/kernels/device/cpu/parallel.h>
#include <sherd/kernels/device/cpu/vector_math.h>

namespace sherd::cpu {
namespace {

struct Softmax {
  float max, sum;  // sum of exp(x - max)
};

// The entries share these two, so that they share their bits.

template <class T>
Softmax softmax_of(const T* x, int64_t count) {
  return vectorized([=] {
    float max = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : max)
    for (int64_t j = 0; j < count; ++j) max = float(x[j]) > max ? float(x[j]) : max;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < count; ++j) sum += MathFor<T>::exp(float(x[j]) - max);
    return Softmax{max, sum};
  });
}

template <class T>
float loss_of(const Softmax& of, const T* x, int64_t target) {
  return of.max - float(x[target]) + std::log(of.sum);
}

template <class T>
void gradient(T* dx, const T* x, int64_t count, const Softmax& of, int64_t target, float scale) {
  const float p =
      MathFor<T>::exp(float(x[target]) - of.max) / of.sum;  // before dx, which may be x, is written
  vectorized([=, factor = scale / of.sum, top = of.max] {
    round_each(dx, count, [=](int64_t j) { return MathFor<T>::exp(float(x[j]) - top) * factor; });
  });
  dx[target] = T((p - 1.0f) * scale);
}

float scale_of(const CrossEntropyArgs& a, int64_t row) {
  return a.scales.data == nullptr ? a.scale : a.scale * a.scales.as<float>()[row];
}

/// Calls f(row, its logits, its softmax) for every row that is learned; others have loss and gradient 0.
template <class T, class F>
void for_rows(ExecutionContext& ctx, const CrossEntropyArgs& a, F f) {
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, a.vocab));
  parallel_for(ctx, a.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* x = a.logits.as<T>() + i * a.ld;
      if (a.targets[i] == kIgnoredTarget) {
        if (a.losses.data != nullptr) a.losses.as<float>()[i] = 0;
        if (a.dlogits.data != nullptr) std::fill_n(a.dlogits.as<T>() + i * a.ld, a.vocab, T(0.0f));
        continue;
      }
      f(i, x, softmax_of(x, a.vocab));
    }
  });
}

void cross_entropy_forward(ExecutionContext& ctx, const CrossEntropyArgs& a) {
  with_activation(a.logits.dtype, [&](auto type) {
    using T = decltype(type);
    for_rows<T>(ctx, a, [&](int64_t i, const T* x, const Softmax& of) {
      a.losses.as<float>()[i] = loss_of(of, x, a.targets[i]);
    });
  });
}

void cross_entropy_backward(ExecutionContext& ctx, const CrossEntropyArgs& a) {
  with_activation(a.logits.dtype, [&](auto type) {
    using T = decltype(type);
    for_rows<T>(ctx, a, [&](int64_t i, const T* x, const Softmax& of) {
      gradient(a.dlogits.as<T>() + i * a.ld, x, a.vocab, of, a.targets[i], scale_of(a, i));
    });
  });
}

void cross_entropy_forward_backward(ExecutionContext& ctx, const CrossEntropyArgs& a) {
  with_activation(a.logits.dtype, [&](auto type) {
    using T = decltype(type);
    for_rows<T>(ctx, a, [&](int64_t i, const T* x, const Softmax& of) {
      a.losses.as<float>()[i] = loss_of(of, x, a.targets[i]);
      gradient(a.dlogits.as<T>() + i * a.ld, x, a.vocab, of, a.targets[i], scale_of(a, i));
    });
  });
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const LossKernels* LossKernels::cpu() {
  static constexpr LossKernels table{
      .cross_entropy_forward = cpu::cross_entropy_forward,
      .cross_entropy_backward = cpu::cross_entropy_backward,
      .cross_entropy_forward_backward = cpu::cross_entropy_forward_backward,
  };
  return &table;
}

}  // namespace sherd
