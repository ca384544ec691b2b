#include <sherd/nn/kernels/rope/rope.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/parallel.h>

namespace sherd::cpu {
namespace {

/// One head; y may be x.
template <class T>
void turn(T* y, const T* x, const float* cos, const float* sin, int64_t half) {
#pragma omp simd
  for (int64_t d = 0; d < half; ++d) {
    const float x1 = float(x[d]), x2 = float(x[d + half]);
    store(y[d], x1 * cos[d] - x2 * sin[d]);
    store(y[d + half], x2 * cos[d] + x1 * sin[d]);
  }
}

/// Threads share positions out: the angles of one are computed once for all sequences and heads.
void rope(ExecutionContext& ctx, const RopeArgs& a) {
  const int64_t half = a.rotary / 2, turned = a.heads * a.head_dim;
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, a.batch * a.columns));
  with_activation(a.x.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(ctx, a.seq, grain, [&](int64_t begin, int64_t end) {
      std::vector<float> cos(static_cast<size_t>(half)), sin(cos.size());
      for (int64_t t = begin; t < end; ++t) {
        for (size_t d = 0; d < cos.size(); ++d) {
          const float angle = static_cast<float>(a.first_position + t) * a.inv_freq[d];
          cos[d] = a.scale * std::cos(angle);
          sin[d] = a.scale * std::sin(a.inverse ? -angle : angle);
        }
        for (int64_t b = 0; b < a.batch; ++b) {
          const int64_t row = (b * a.seq + t) * a.columns;
          const T* x = a.x.as<T>() + row;
          T* y = a.y.as<T>() + row;
          for (int64_t c = 0; c < turned; c += a.head_dim) {
            turn(y + c, x + c, cos.data(), sin.data(), half);
            if (x != y) std::copy(x + c + a.rotary, x + c + a.head_dim, y + c + a.rotary);
          }
          if (x != y) std::copy(x + turned, x + a.columns, y + turned);
        }
      }
    });
  });
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const RopeKernels* RopeKernels::cpu() {
  static constexpr RopeKernels table{.rope = cpu::rope};
  return &table;
}

}  // namespace sherd
