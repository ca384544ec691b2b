#include <sherd/kernels/elementwise/elementwise.h>

#include <sherd/kernels/device/cpu/map.h>

// `omp simd` tells the compiler what it cannot see: outputs are inputs themselves or do not overlap them.

namespace sherd::cpu {
namespace {

template <class To, class From>
To convert(From v) {
  if constexpr (std::is_same_v<To, double> || std::is_same_v<From, double>) {
    if constexpr (std::is_same_v<To, From>) {
      return v;
    } else if constexpr (std::is_same_v<To, double>) {
      return double(float(v));
    } else {
      return To(static_cast<float>(v));  // the 16-bit formats round through f32
    }
  } else {
    return To(float(v));
  }
}

template <class F>
void with_float_type(DType t, F&& f) {
  if (t == DType::f16) return f(f16{});
  if (t == DType::f64) return f(double{});
  with_activation(t, f);
}

void fill(ExecutionContext& ctx, Ref dst, int64_t count, double value) {
  with_dtype(dst.dtype, [&]<class T>(T) {
    parallel_for(ctx, count, kGrain, [p = dst.as<T>(), v = to_element<T>(value)](int64_t begin, int64_t end) {
      std::fill(p + begin, p + end, v);
    });
  });
}

void cast(ExecutionContext& ctx, Ref dst, Ref src, int64_t count) {
  with_float_type(dst.dtype, [&](auto to) {
    with_float_type(src.dtype, [&](auto from) {
      auto* d = dst.as<decltype(to)>();
      auto* s = src.as<decltype(from)>();
      parallel_for(ctx, count, kGrain, [=](int64_t begin, int64_t end) {
        if constexpr (std::is_same_v<decltype(from), float> && std::is_same_v<decltype(to), bf16>)
          return narrow(d + begin, s + begin, end - begin);
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) d[i] = convert<decltype(to)>(s[i]);
      });
    });
  });
}

void scale(ExecutionContext& ctx, Ref x, int64_t count, float factor) {
  map_elements(
      ctx, count, [=](float v) { return v * factor; }, x, x);
}

void scaled_add(ExecutionContext& ctx, float* dst, float alpha, Ref src, int64_t count) {
  with_activation(src.dtype, [&](auto type) {
    auto* s = src.as<decltype(type)>();
    parallel_for(ctx, count, kGrain, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) dst[i] = dst[i] + alpha * float(s[i]);
    });
  });
}

void scale_and_add(ExecutionContext& ctx, float* dst, float decay, float alpha, const float* src,
                   int64_t count) {
  parallel_for(ctx, count, kGrain, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) dst[i] = decay * dst[i] + alpha * src[i];
  });
}

void add(ExecutionContext& ctx, Ref out, Ref a, Ref b, int64_t count) {
  map_elements(
      ctx, count, [](float x, float y) { return x + y; }, out, a, b);
}

void multiply(ExecutionContext& ctx, Ref out, Ref a, Ref b, int64_t count) {
  map_elements(
      ctx, count, [](float x, float y) { return x * y; }, out, a, b);
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const ElementwiseKernels* ElementwiseKernels::cpu() {
  static const ElementwiseKernels table{
      .fill = cpu::fill,
      .cast = cpu::cast,
      .scale = cpu::scale,
      .scale_by = reference()->scale_by,
      .clamp = reference()->clamp,
      .scaled_add = cpu::scaled_add,
      .scale_and_add = cpu::scale_and_add,
      .add = cpu::add,
      .multiply = cpu::multiply,
  };
  return &table;
}

}  // namespace sherd
