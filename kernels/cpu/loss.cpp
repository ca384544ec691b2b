#include <cmath>
#include <limits>

#include "cpu.h"
#include "parallel.h"
#include "vector_math.h"

namespace sherd::cpu {
namespace {

struct Softmax {
  float max, sum;  // sum of exp(x - max)
};

template <class T>
Softmax softmax_of(const T* x, int64_t count) {
  float max = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : max)
  for (int64_t j = 0; j < count; ++j) max = float(x[j]) > max ? float(x[j]) : max;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < count; ++j) sum += exp_fast(float(x[j]) - max);
  return {max, sum};
}

int64_t row_grain(const CrossEntropyArgs& a) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, a.vocab));
}

}  // namespace

void cross_entropy_forward(ExecutionContext& ctx, const CrossEntropyArgs& a) {
  with_activation(a.logits.dtype, [&](auto type) {
    parallel_for(ctx, a.rows, row_grain(a), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto* x = a.logits.as<decltype(type)>() + i * a.vocab;
        const auto [max, sum] = softmax_of(x, a.vocab);
        a.losses[i] = max - float(x[a.targets[i]]) + std::log(sum);
      }
    });
  });
}

void cross_entropy_backward(ExecutionContext& ctx, const CrossEntropyArgs& a) {
  with_activation(a.logits.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(ctx, a.rows, row_grain(a), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* x = a.logits.as<T>() + i * a.vocab;
        T* dx = a.dlogits.as<T>() + i * a.vocab;
        const auto [max, sum] = softmax_of(x, a.vocab);
        const int64_t target = a.targets[i];
        const float p = exp_fast(float(x[target]) - max) / sum;  // before dx, which may be x, is written
        const float factor = a.scale / sum, top = max;
#pragma omp simd
        for (int64_t j = 0; j < a.vocab; ++j) store(dx[j], exp_fast(float(x[j]) - top) * factor);
        dx[target] = T((p - 1.0f) * a.scale);
      }
    });
  });
}

}  // namespace sherd::cpu
