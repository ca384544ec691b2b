#include <sherd/kernels/epilogue/epilogue.h>

#include <algorithm>

#include <sherd/kernels/device/cpu/map.h>
#include <sherd/kernels/device/cpu/vector_math.h>

// 0.5 (1 + tanh(u)) is sigmoid(2u), which needs one exponential and loses no digits where tanh is near -1.

namespace sherd::cpu {
namespace {

constexpr float kTwoRoot = 1.5957691216f;  // 2 sqrt(2/pi)
constexpr float kCubic = 0.044715f;

/// Beyond 10 the sigmoid is 0 or 1 to fp32; the bound keeps powers of x finite, and 2u below 88.
inline float clamped(float x) {
  const float c = x < -10.0f ? -10.0f : x;
  return c > 10.0f ? 10.0f : c;
}

template <class T>
float sigmoid(float x) {
  return 1.0f / (1.0f + (std::is_same_v<T, float> ? exp_bounded(-x) : exp_rough(-x)));
}

/// Returns gelu(x), for results of type T.
template <class T>
float gelu(float x) {
  const float c = clamped(x), low = x < -10.0f ? -10.0f : x;
  return low * sigmoid<T>(kTwoRoot * c * mul_add(kCubic * c, c, 1.0f));
}

template <class T>
float gelu_slope(float x) {
  const float c = clamped(x);
  const float s = sigmoid<T>(kTwoRoot * c * mul_add(kCubic * c, c, 1.0f));
  const float du = kTwoRoot * mul_add(3 * kCubic * c, c, 1.0f);
  return s + c * s * (1.0f - s) * du;  // with a fused addition GCC 12 leaves AVX2's loops scalar
}

void gelu_forward(ExecutionContext& ctx, Ref y, Ref x, int64_t count) {
  with_activation(y.dtype, [&]<class T>(T) {
    map_elements_of(
        ctx, count, [](float v) { return gelu<T>(v); }, y.as<T>(), x.as<const T>());
  });
}

void gelu_backward(ExecutionContext& ctx, Ref dx, Ref dy, Ref x, int64_t count) {
  with_activation(dx.dtype, [&]<class T>(T) {
    map_elements_of(
        ctx, count, [](float d, float v) { return d * gelu_slope<T>(v); }, dx.as<T>(), dy.as<const T>(),
        x.as<const T>());
  });
}

void add_bias(ExecutionContext& ctx, Ref y, Ref bias, int64_t rows, int64_t cols) {
  with_activation(y.dtype, [&](auto type) {
    using T = decltype(type);
    T* out = y.as<T>();
    const T* b = bias.as<T>();
    parallel_for(ctx, rows, row_grain(cols), [=](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        T* row = out + r * cols;
        round_each(row, cols, [=](int64_t c) { return float(row[c]) + float(b[c]); });
      }
    });
  });
}

void bias_backward(ExecutionContext& ctx, Ref to, Ref dy, int64_t rows, int64_t cols) {
  with_activation(dy.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int64_t kBlock = 64;
    const T* in = dy.as<T>();
    float* dbias = to.as<float>();
    // Threads share columns out, so that the sum over rows is the same for any number of threads.
    parallel_for(ctx, cols, kBlock, [=](int64_t begin, int64_t end) {
      float sum[kBlock];
      for (int64_t first = begin; first < end; first += kBlock) {
        const int64_t width = std::min(kBlock, end - first);
        std::fill_n(sum, kBlock, 0.0f);
        for (int64_t r = 0; r < rows; ++r) {
          const T* row = in + r * cols + first;
#pragma omp simd
          for (int64_t c = 0; c < width; ++c) sum[c] += float(row[c]);
        }
        for (int64_t c = 0; c < width; ++c) dbias[first + c] += sum[c];
      }
    });
  });
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const EpilogueKernels* EpilogueKernels::cpu() {
  static constexpr EpilogueKernels table{
      .gelu_forward = cpu::gelu_forward,
      .gelu_backward = cpu::gelu_backward,
      .add_bias = cpu::add_bias,
      .bias_backward = cpu::bias_backward,
  };
  return &table;
}

}  // namespace sherd
