#include <sherd/nn/kernels/vocab_parallel/vocab_parallel.h>

#include <cmath>
#include <limits>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/narrow.h>
#include <sherd/kernels/device/cpu/parallel.h>
#include <sherd/kernels/device/cpu/vector_math.h>

namespace sherd::cpu {
namespace {

void vocab_parallel_partial(ExecutionContext& ctx, const VocabParallelArgs& a) {
  with_activation(a.logits.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(ctx, a.rows, row_grain(a.cols), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* x = a.logits.as<T>() + i * a.ld;
        float max = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : max)
        for (int64_t j = 0; j < a.cols; ++j) max = float(x[j]) > max ? float(x[j]) : max;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < a.cols; ++j) sum += MathFor<T>::exp(float(x[j]) - max);
        const int64_t target = a.targets[i] - a.begin;
        float* stats = a.stats + 3 * i;
        stats[0] = max;
        stats[1] = sum;
        stats[2] = target >= 0 && target < a.cols ? float(x[target]) : 0.0f;
      }
    });
  });
}

void vocab_parallel_combine(ExecutionContext& ctx, const VocabParallelArgs& a) {
  parallel_for(ctx, a.rows, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto stat = [&](int64_t part, int64_t k) { return a.stats[(part * a.rows + i) * 3 + k]; };
      float max = -std::numeric_limits<float>::infinity();
      for (int64_t p = 0; p < a.parts; ++p) max = stat(p, 0) > max ? stat(p, 0) : max;
      float sum = 0, target = 0;
      for (int64_t p = 0; p < a.parts; ++p) {
        sum += stat(p, 1) * std::exp(stat(p, 0) - max);
        target += stat(p, 2);
      }
      const float log_sum = std::log(sum);
      const bool ignored = a.targets[i] == kIgnoredTarget;
      a.lse[i] = ignored ? std::numeric_limits<float>::infinity() : max + log_sum;
      a.losses[i] = ignored ? 0.0f : max - target + log_sum;
    }
  });
}

void vocab_parallel_backward(ExecutionContext& ctx, const VocabParallelArgs& a) {
  with_activation(a.logits.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(ctx, a.rows, row_grain(a.cols), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* x = a.logits.as<T>() + i * a.ld;
        T* dx = a.dlogits.as<T>() + i * a.ld;
        const int64_t target = a.targets[i] - a.begin;
        const bool here = target >= 0 && target < a.cols;
        const float lse = a.lse[i], scale = a.scale;
        const float p =
            here ? MathFor<T>::exp(float(x[target]) - lse) : 0;  // before dx, which may be x, is written
        round_each(dx, a.cols, [=](int64_t j) { return MathFor<T>::exp(float(x[j]) - lse) * scale; });
        if (here) dx[target] = T((p - 1.0f) * scale);
      }
    });
  });
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const VocabParallelKernels* VocabParallelKernels::cpu() {
  static constexpr VocabParallelKernels table{
      .vocab_parallel_partial = cpu::vocab_parallel_partial,
      .vocab_parallel_combine = cpu::vocab_parallel_combine,
      .vocab_parallel_backward = cpu::vocab_parallel_backward,
  };
  return &table;
}

}  // namespace sherd
