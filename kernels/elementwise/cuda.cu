#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/ops/segments.h>

#include <sherd/kernels/cuda/cuda.h>
#include <sherd/kernels/device/cuda/segments.h>

// Single fp32 operations, rounded one by one: the bits of the reference.

namespace sherd::cuda {
namespace {

constexpr int kMostRows = 65535;  // of a grid in y

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

template <class T>
struct Scale {
  static constexpr int kVec = kVecOf<T>;
  T* x;
  float factor;

  template <int N>
  __device__ void run(int64_t i) const {
    Vec<T, N> v = load<N>(x, i);
#pragma unroll
    for (int k = 0; k < N; ++k) put(v[k], __fmul_rn(to_float(v[k]), factor));
    store(x, i, v);
  }
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
    Scale<float>{x, *f.factor}.run<N>(i);
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

template <class T>
struct Add {
  static constexpr int kVec = kVecOf<T>;
  T* out;
  const T *a, *b;

  template <int N>
  __device__ void run(int64_t i) const {
    const Vec<T, N> x = load<N>(a, i), y = load<N>(b, i);
    Vec<T, N> z;
#pragma unroll
    for (int k = 0; k < N; ++k) put(z[k], __fadd_rn(to_float(x[k]), to_float(y[k])));
    store(out, i, z);
  }
};

template <class T>
struct Multiply {
  static constexpr int kVec = kVecOf<T>;
  T* out;
  const T *a, *b;

  template <int N>
  __device__ void run(int64_t i) const {
    const Vec<T, N> x = load<N>(a, i), y = load<N>(b, i);
    Vec<T, N> z;
#pragma unroll
    for (int k = 0; k < N; ++k) put(z[k], __fmul_rn(to_float(x[k]), to_float(y[k])));
    store(out, i, z);
  }
};

struct AddWords {
  static constexpr int kVec = 2;
  uint64_t* dst;  // unsigned: wraps
  const uint64_t* src;

  template <int N>
  __device__ void run(int64_t i) const {
    Vec<uint64_t, N> d = load<N>(dst, i);
    const Vec<uint64_t, N> s = load<N>(src, i);
#pragma unroll
    for (int k = 0; k < N; ++k) d[k] += s[k];
    store(dst, i, d);
  }
};

/// Runs of `words` words; strides in words.
template <class Word>
__global__ void __launch_bounds__(256) copy_runs(Word* dst, const Word* src, int64_t dst_stride,
                                                 int64_t src_stride, int64_t blocks, int64_t words) {
  for (int64_t b = blockIdx.y; b < blocks; b += gridDim.y)
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words;
         i += int64_t{gridDim.x} * blockDim.x)
      dst[b * dst_stride + i] = src[b * src_stride + i];
}

template <class Word>
bool copy_runs_of(ExecutionContext& context, const StridedCopyArgs& a) {
  constexpr int64_t kSize = sizeof(Word);
  if (reinterpret_cast<uintptr_t>(a.dst) % kSize || reinterpret_cast<uintptr_t>(a.src) % kSize ||
      a.dst_stride % kSize || a.src_stride % kSize || a.run % kSize)
    return false;
  const int64_t words = a.run / kSize;
  const Grid grid{dim3(blocks_of(words, 256, 1024), blocks_of(a.blocks, 1, kMostRows)), dim3(256)};
  launch(context, "strided_copy", copy_runs<Word>, grid, reinterpret_cast<Word*>(a.dst),
         reinterpret_cast<const Word*>(a.src), a.dst_stride / kSize, a.src_stride / kSize, a.blocks, words);
  return true;
}

}  // namespace

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
  }
}

void copy(ExecutionContext& context, void* dst, const void* src, int64_t bytes) {
  if (bytes <= 0 || dst == src) return;
  check(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_of(context)), "copy");
}

void strided_copy(ExecutionContext& context, const StridedCopyArgs& a) {
  if (a.blocks <= 0 || a.run <= 0) return;
  if (a.blocks == 1 || (a.dst_stride == a.run && a.src_stride == a.run))
    return copy(context, a.dst, a.src, a.blocks * a.run);
  constexpr int64_t kMostPitch = INT32_MAX;
  if (a.dst_stride >= a.run && a.src_stride >= a.run && a.dst_stride <= kMostPitch &&
      a.src_stride <= kMostPitch) {
    const auto size = [](int64_t v) { return static_cast<size_t>(v); };
    check(cudaMemcpy2DAsync(a.dst, size(a.dst_stride), a.src, size(a.src_stride), size(a.run), size(a.blocks),
                            cudaMemcpyDefault, stream_of(context)),
          "strided_copy");
    return;
  }
  if (copy_runs_of<uint4>(context, a) || copy_runs_of<uint2>(context, a) ||
      copy_runs_of<uint32_t>(context, a) || copy_runs_of<uint16_t>(context, a))
    return;
  copy_runs_of<uint8_t>(context, a);
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
  with_f32_bf16(x.dtype, [&]<class T>(T) {
    for_elements(context, "scale", Scale<T>{x.as<T>(), factor}, count, x.as<T>());
  });
}

void scale_by(ExecutionContext& context, const std::vector<ScaleSegment>& segments, const float* factor) {
  for_segments<ScaleBy>(context, "scale_by", segments, Factor{factor},
                        [](const ScaleSegment& s) { return ScaleBy{s.x}; });
}

void clamp(ExecutionContext& context, const std::vector<ScaleSegment>& segments, float limit) {
  for_segments<Clamp>(context, "clamp", segments, Limit{limit}, [](const ScaleSegment& s) { return Clamp{s.x}; });
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
  with_f32_bf16(out.dtype, [&]<class T>(T) {
    T* o = out.as<T>();
    const T *x = a.as<T>(), *y = b.as<T>();
    for_elements(context, "add", Add<T>{o, x, y}, count, o, x, y);
  });
}

void multiply(ExecutionContext& context, Ref out, Ref a, Ref b, int64_t count) {
  with_f32_bf16(out.dtype, [&]<class T>(T) {
    T* o = out.as<T>();
    const T *x = a.as<T>(), *y = b.as<T>();
    for_elements(context, "multiply", Multiply<T>{o, x, y}, count, o, x, y);
  });
}

void add_words(ExecutionContext& context, int64_t* dst, const int64_t* src, int64_t count) {
  auto* to = reinterpret_cast<uint64_t*>(dst);
  const auto* from = reinterpret_cast<const uint64_t*>(src);
  for_elements(context, "add_words", AddWords{to, from}, count, to, from);
}

}  // namespace sherd::cuda
