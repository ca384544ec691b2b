#include <sherd/kernels/elementwise/elementwise.h>

#include <sherd/kernels/device/cuda/map.h>
#include <sherd/kernels/device/cuda/segments.h>

// Single fp32 operations, rounded one by one: the bits of the reference.

namespace sherd::cuda {
namespace {

template <class T>
constexpr int kVecOf = 16 / sizeof(T);

template <class T>
struct Fill {
  static constexpr int kVec = kVecOf<T>;
  T* dst;
  T value;

  template <int N>
  __device__ void run(int64_t i) const {
    Vec<T, N> v;
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = value;
    store(dst, i, v);
  }
};

template <class To, class From>
__device__ void convert(To& to, From from) {
  if constexpr (std::is_same_v<To, From>) {
    to = from;
  } else if constexpr (std::is_same_v<To, double>) {
    to = double{to_float(from)};
  } else if constexpr (std::is_same_v<From, double>) {
    put(to, static_cast<float>(from));  // the 16-bit formats round through f32
  } else {
    put(to, to_float(from));
  }
}

template <class To, class From>
struct Cast {
  static constexpr int kVec = std::max(kVecOf<To>, kVecOf<From>);
  To* dst;
  const From* src;

  template <int N>
  __device__ void run(int64_t i) const {
    const Vec<From, N> from = load<N>(src, i);
    Vec<To, N> to;
#pragma unroll
    for (int k = 0; k < N; ++k) convert(to[k], from[k]);
    store(dst, i, to);
  }
};

struct Scale {
  float factor;
  __device__ float operator()(float x) const { return __fmul_rn(x, factor); }
};

struct Factor {
  const float* factor;

  __device__ bool nothing_to_do() const { return *factor == 1; }
};

struct Limit {
  float limit;
  __device__ bool nothing_to_do() const { return false; }
};

struct Clamp {
  static constexpr int kVec = 4;
  float* x;

  Cover cover_of(int64_t count) const { return cover<kVec>(count, x); }

  template <int N>
  __device__ void run(int64_t i, const Limit& l) const {
    Vec<float, N> v = load<N>(x, i);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (v[k] > l.limit) v[k] = l.limit;
      if (v[k] < -l.limit) v[k] = -l.limit;
    }
    store<N>(x, i, v);
  }
};

struct ScaleBy {
  static constexpr int kVec = 4;
  float* x;

  Cover cover_of(int64_t count) const { return cover<kVec>(count, x); }

  template <int N>
  __device__ void run(int64_t i, const Factor& f) const {
    Map<float, Scale, 1>{x, {x}, {*f.factor}}.run<N>(i);
  }
};

template <class T>
struct ScaledAdd {
  static constexpr int kVec = kVecOf<T>;
  float* dst;
  float alpha;
  const T* src;

  template <int N>
  __device__ void run(int64_t i) const {
    Vec<float, N> d = load<N>(dst, i);
    const Vec<T, N> s = load<N>(src, i);
#pragma unroll
    for (int k = 0; k < N; ++k) d[k] = __fadd_rn(d[k], __fmul_rn(alpha, to_float(s[k])));
    store(dst, i, d);
  }
};

struct ScaleAndAdd {
  static constexpr int kVec = 4;
  float* dst;
  float decay, alpha;
  const float* src;

  template <int N>
  __device__ void run(int64_t i) const {
    Vec<float, N> d = load<N>(dst, i);
    const Vec<float, N> s = load<N>(src, i);
#pragma unroll
    for (int k = 0; k < N; ++k) d[k] = __fadd_rn(__fmul_rn(decay, d[k]), __fmul_rn(alpha, s[k]));
    store(dst, i, d);
  }
};

struct Add {
  __device__ float operator()(float x, float y) const { return __fadd_rn(x, y); }
};

struct Multiply {
  __device__ float operator()(float x, float y) const { return __fmul_rn(x, y); }
};

void fill(ExecutionContext& context, Ref dst, int64_t count, double value) {
  const auto fill_as = [&]<class T>(T v) {
    for_elements(context, "fill", Fill<T>{dst.as<T>(), v}, count, dst.as<T>());
  };
  switch (dst.dtype) {
    case DType::f32:
      return fill_as(static_cast<float>(value));
    case DType::bf16:
      return fill_as(__float2bfloat16_rn(static_cast<float>(value)));
    case DType::f16:
      return fill_as(__float2half_rn(static_cast<float>(value)));
    case DType::f64:
      return fill_as(value);
    case DType::i32:
      return fill_as(static_cast<int32_t>(value));
    case DType::i64:
      return fill_as(static_cast<int64_t>(value));
    case DType::u8:
      return fill_as(static_cast<uint8_t>(value));
    case DType::i8:
      return fill_as(static_cast<int8_t>(value));
    case DType::f8_e4m3:
      return fill_as(f8_e4m3(static_cast<float>(value)).bits);
  }
}

void cast(ExecutionContext& context, Ref dst, Ref src, int64_t count) {
  with_float_type(dst.dtype, [&]<class To>(To) {
    with_float_type(src.dtype, [&]<class From>(From) {
      To* to = dst.as<To>();
      const From* from = src.as<From>();
      for_elements(context, "cast", Cast<To, From>{to, from}, count, to, from);
    });
  });
}

void scale(ExecutionContext& context, Ref x, int64_t count, float factor) {
  map_elements(context, "scale", count, Scale{factor}, x, x);
}

void scale_by(ExecutionContext& context, const std::vector<ScaleSegment>& segments, const float* factor) {
  for_segments<ScaleBy>(context, "scale_by", segments, Factor{factor},
                        [](const ScaleSegment& s) { return ScaleBy{s.x}; });
}

void clamp(ExecutionContext& context, const std::vector<ScaleSegment>& segments, float limit) {
  for_segments<Clamp>(context, "clamp", segments, Limit{limit},
                      [](const ScaleSegment& s) { return Clamp{s.x}; });
}

void scaled_add(ExecutionContext& context, float* dst, float alpha, Ref src, int64_t count) {
  with_f32_bf16(src.dtype, [&]<class T>(T) {
    const T* from = src.as<T>();
    for_elements(context, "scaled_add", ScaledAdd<T>{dst, alpha, from}, count, dst, from);
  });
}

void scale_and_add(ExecutionContext& context, float* dst, float decay, float alpha, const float* src,
                   int64_t count) {
  for_elements(context, "scale_and_add", ScaleAndAdd{dst, decay, alpha, src}, count, dst, src);
}

void add(ExecutionContext& context, Ref out, Ref a, Ref b, int64_t count) {
  map_elements(context, "add", count, Add{}, out, a, b);
}

void multiply(ExecutionContext& context, Ref out, Ref a, Ref b, int64_t count) {
  map_elements(context, "multiply", count, Multiply{}, out, a, b);
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const ElementwiseKernels* ElementwiseKernels::cuda() {
  static constexpr ElementwiseKernels table{
      .fill = cuda::fill,
      .cast = cuda::cast,
      .scale = cuda::scale,
      .scale_by = cuda::scale_by,
      .clamp = cuda::clamp,
      .scaled_add = cuda::scaled_add,
      .scale_and_add = cuda::scale_and_add,
      .add = cuda::add,
      .multiply = cuda::multiply,
  };
  return &table;
}

}  // namespace sherd
