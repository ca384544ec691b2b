#include "cpu.h"
#include "parallel.h"
#include "vector_math.h"

// 0.5 (1 + tanh(u)) is sigmoid(2u), which needs one exponential and loses no digits where tanh is near -1.

namespace sherd::cpu {
namespace {

constexpr float kTwoRoot = 1.5957691216f;  // 2 sqrt(2/pi)
constexpr float kCubic = 0.044715f;

/// Beyond 12 the sigmoid is 0 or 1 to fp32; the bound keeps powers of x finite.
inline float clamped(float x) {
  const float c = x < -12.0f ? -12.0f : x;
  return c > 12.0f ? 12.0f : c;
}

inline float gelu(float x) {
  const float c = clamped(x);
  return x * sigmoid_fast(kTwoRoot * c * mul_add(kCubic * c, c, 1.0f));
}

inline float gelu_slope(float x) {
  const float c = clamped(x);
  const float s = sigmoid_fast(kTwoRoot * c * mul_add(kCubic * c, c, 1.0f));
  const float du = kTwoRoot * mul_add(3 * kCubic * c, c, 1.0f);
  return mul_add(c * s * (1.0f - s), du, s);
}

}  // namespace

void gelu_forward(ExecutionContext& ctx, Ref y, Ref x, int64_t count) {
  with_activation(x.dtype, [&](auto type) {
    using T = decltype(type);
    T* out = y.as<T>();
    const T* in = x.as<T>();
    parallel_for(ctx, count, kGrain, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) store(out[i], gelu(float(in[i])));
    });
  });
}

void gelu_backward(ExecutionContext& ctx, Ref dx, Ref dy, Ref x, int64_t count) {
  with_activation(x.dtype, [&](auto type) {
    using T = decltype(type);
    T* out = dx.as<T>();
    const T *grad = dy.as<T>(), *in = x.as<T>();
    parallel_for(ctx, count, kGrain, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) store(out[i], float(grad[i]) * gelu_slope(float(in[i])));
    });
  });
}

}  // namespace sherd::cpu
