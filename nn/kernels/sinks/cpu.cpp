#include <sherd/nn/kernels/sinks/sinks.h>

#include <algorithm>
#include <cmath>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/parallel.h>

namespace sherd::cpu {
namespace {

// Threads share out (sequence, head) pairs in forward and heads in backward, so that bits do not depend on their number.

void sinks_forward(ExecutionContext& ctx, const SinksArgs& a) {
  with_activation(a.out.dtype, [&]<class T>(T) {
    parallel_for(ctx, a.batch * a.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t bh = begin; bh < end; ++bh) {
        const int64_t b = bh / a.heads, h = bh % a.heads;
        for (int64_t t = 0; t < a.seq; ++t) {
          float& lse = a.lse[a.sum(b, h, t)];
          const float most = std::max(lse, a.sinks[h]);
          const float with = most + std::log(std::exp(lse - most) + std::exp(a.sinks[h] - most));
          const float factor = std::exp(lse - with);
          T* const out = a.out.as<T>() + a.row(b, h, t);
#pragma omp simd
          for (int64_t d = 0; d < a.head_dim; ++d) store(out[d], float(out[d]) * factor);
          lse = with;
        }
      }
    });
  });
}

void sinks_backward(ExecutionContext& ctx, const SinksArgs& a) {
  with_activation(a.out.dtype, [&]<class T>(T) {
    parallel_for(ctx, a.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t h = begin; h < end; ++h) {
        double sum = 0;
        for (int64_t b = 0; b < a.batch; ++b)
          for (int64_t t = 0; t < a.seq; ++t) {
            const T *out = a.out.as<T>() + a.row(b, h, t), *dout = a.dout.as<T>() + a.row(b, h, t);
            float dot = 0;
#pragma omp simd reduction(+ : dot)
            for (int64_t d = 0; d < a.head_dim; ++d) dot += float(dout[d]) * float(out[d]);
            sum += std::exp(double{a.sinks[h]} - double{a.lse[a.sum(b, h, t)]}) * dot;
          }
        a.dsinks[h] -= static_cast<float>(sum);
      }
    });
  });
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const SinksKernels* SinksKernels::cpu() {
  static constexpr SinksKernels table{.sinks_forward = cpu::sinks_forward,
                                      .sinks_backward = cpu::sinks_backward};
  return &table;
}

}  // namespace sherd
