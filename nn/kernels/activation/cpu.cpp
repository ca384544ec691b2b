#include <sherd/nn/kernels/activation/activation.h>

#include <cmath>

#include <sherd/kernels/device/cpu/map.h>
#include <sherd/kernels/device/cpu/vector_math.h>

namespace sherd::cpu {
namespace {

struct GeluErf {
  /// Phi(x): the complement keeps its digits where the sum with erf would lose them.
  static float distribution(float x) { return 0.5f * std::erfc(-0.70710678f * x); }
  static float value(float x) { return x * distribution(x); }
  static float slope(float x) { return mul_add(0.39894228f * x, exp_fast(-0.5f * x * x), distribution(x)); }
};

/// SiLU for results of type T.
template <class T>
struct Silu {
  static float value(float x) { return x * MathFor<T>::sigmoid(x); }
  static float slope(float x) {
    const float s = MathFor<T>::sigmoid(x);
    return s * mul_add(x, 1.0f - s, 1.0f);
  }
};

struct Relu {
  static float value(float x) { return x < 0.0f ? 0.0f : x; }
  static float slope(float x) { return x <= 0.0f ? 0.0f : 1.0f; }
};

template <class T, class F>
void with_activation_function(Activation f, F&& call) {
  switch (f) {
    case Activation::gelu_erf:
      return call(GeluErf{});
    case Activation::silu:
      return call(Silu<T>{});
    case Activation::relu:
      return call(Relu{});
  }
  throw InvalidArgument("cpu kernels: unknown activation");
}

/// Calls f(row, first column, behind the last) so that one long row is shared out by columns, many rows by rows.
template <class F>
void for_parts(ExecutionContext& ctx, int64_t rows, int64_t cols, F f) {
  if (rows == 1)
    return parallel_for(ctx, cols, kGrain, [=](int64_t begin, int64_t end) { f(0, begin, end); });
  parallel_for(ctx, rows, row_grain(cols), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) f(r, 0, cols);
  });
}

void activation_forward(ExecutionContext& ctx, Activation f, Ref y, Ref x, int64_t count) {
  with_activation(y.dtype, [&]<class T>(T) {
    with_activation_function<T>(f, [&]<class F>(F) {
      map_elements_of(
          ctx, count, [](float v) { return F::value(v); }, y.as<T>(), x.as<const T>());
    });
  });
}

void activation_backward(ExecutionContext& ctx, Activation f, Ref dx, Ref dy, Ref x, int64_t count) {
  with_activation(dx.dtype, [&]<class T>(T) {
    with_activation_function<T>(f, [&]<class F>(F) {
      map_elements_of(
          ctx, count, [](float d, float v) { return d * F::slope(v); }, dx.as<T>(), dy.as<const T>(),
          x.as<const T>());
    });
  });
}

void swiglu_forward(ExecutionContext& ctx, const SwigluArgs& a) {
  with_activation(a.gate.dtype, [&](auto type) {
    using T = decltype(type);
    for_parts(ctx, a.rows, a.cols, [=](int64_t r, int64_t begin, int64_t end) {
      const T *gate = a.gate.as<T>() + r * a.stride, *up = a.up.as<T>() + r * a.stride;
      T* y = a.y.as<T>() + r * a.cols;
      round_each(y + begin, end - begin,
                 [=](int64_t c) { return Silu<T>::value(float(gate[begin + c])) * float(up[begin + c]); });
    });
  });
}

void swiglu_backward(ExecutionContext& ctx, const SwigluArgs& a) {
  with_activation(a.gate.dtype, [&](auto type) {
    using T = decltype(type);
    for_parts(ctx, a.rows, a.cols, [=](int64_t r, int64_t begin, int64_t end) {
      const T *gate = a.gate.as<T>() + r * a.stride, *up = a.up.as<T>() + r * a.stride;
      T *dgate = a.dgate.as<T>() + r * a.stride, *dup = a.dup.as<T>() + r * a.stride;
      const T* dy = a.dy.as<T>() + r * a.cols;
#pragma omp simd
      for (int64_t c = begin; c < end; ++c) {
        const float d = float(dy[c]), g = float(gate[c]), u = float(up[c]);
        store(dgate[c], d * u * Silu<T>::slope(g));
        store(dup[c], d * Silu<T>::value(g));
      }
    });
  });
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const ActivationKernels* ActivationKernels::cpu() {
  static constexpr ActivationKernels table{
      .activation_forward = cpu::activation_forward,
      .activation_backward = cpu::activation_backward,
      .swiglu_forward = cpu::swiglu_forward,
      .swiglu_backward = cpu::swiglu_backward,
  };
  return &table;
}

}  // namespace sherd
