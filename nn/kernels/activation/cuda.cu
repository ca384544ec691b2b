#include <sherd/nn/kernels/activation/activation.h>

#include <sherd/kernels/device/cuda/map.h>

// Activations other than gelu by tanh, and the gated product.

namespace sherd::cuda {
namespace {

struct GeluErf {
  /// Phi(x): the complement keeps its digits where the sum with erf would lose them.
  static __device__ float distribution(float x) { return 0.5f * erfcf(-0.70710678f * x); }
  static __device__ float value(float x) { return x * distribution(x); }
  static __device__ float slope(float x) {
    return fmaf(0.39894228f * x, expf(-0.5f * x * x), distribution(x));
  }
};

struct Silu {
  static __device__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }
  static __device__ float value(float x) { return x * sigmoid(x); }
  static __device__ float slope(float x) {
    const float s = sigmoid(x);
    return s * fmaf(x, 1.0f - s, 1.0f);
  }
};

struct Relu {
  static __device__ float value(float x) { return x < 0.0f ? 0.0f : x; }
  static __device__ float slope(float x) { return x <= 0.0f ? 0.0f : 1.0f; }
};

template <class F>
void with_function(Activation f, F&& call) {
  switch (f) {
    case Activation::gelu_erf:
      return call(GeluErf{});
    case Activation::silu:
      return call(Silu{});
    case Activation::relu:
      return call(Relu{});
  }
  throw InvalidArgument("cuda kernels: unknown activation");
}

template <class F>
struct Value {
  __device__ float operator()(float x) const { return F::value(x); }
};

template <class F>
struct Slope {
  __device__ float operator()(float dy, float x) const { return dy * F::slope(x); }
};

/// Pointers of SwigluArgs; backward unless dy is null.
template <class T>
struct Gated {
  const T *gate, *up, *dy;
  T *y, *dgate, *dup;
};

/// Groups of N columns of every row; block.y rows at once.
template <class T, int N>
__global__ void __launch_bounds__(256) swiglu(Gated<T> p, int64_t rows, int64_t cols, int64_t stride) {
  const int64_t groups = cols / N;
  for (int64_t r = int64_t{blockIdx.y} * blockDim.y + threadIdx.y; r < rows;
       r += int64_t{gridDim.y} * blockDim.y)
    for (int64_t c = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; c < groups;
         c += int64_t{gridDim.x} * blockDim.x) {
      const int64_t in = r * stride + c * N, out = r * cols + c * N;
      Vec<T, N> g = load<N>(p.gate, in), u = load<N>(p.up, in);
      if (p.dy == nullptr) {
#pragma unroll
        for (int k = 0; k < N; ++k) put(g[k], Silu::value(to_float(g[k])) * to_float(u[k]));
        store(p.y, out, g);
        continue;
      }
      const Vec<T, N> dy = load<N>(p.dy, out);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float d = to_float(dy[k]), of = to_float(g[k]);
        put(g[k], d * to_float(u[k]) * Silu::slope(of));
        put(u[k], d * Silu::value(of));
      }
      store(p.dgate, in, g);
      store(p.dup, in, u);
    }
}

void run_swiglu(ExecutionContext& context, const char* what, const SwigluArgs& a) {
  if (a.rows <= 0 || a.cols <= 0) return;
  with_f32_bf16(a.gate.dtype, [&]<class T>(T) {
    constexpr int kVec = 16 / sizeof(T);
    const Gated<T> p{a.gate.as<T>(), a.up.as<T>(), a.dy.as<T>(), a.y.as<T>(), a.dgate.as<T>(), a.dup.as<T>()};
    // A single row need not end on a boundary, but then it is not worth more than one element at a time.
    const bool fast = a.stride % kVec == 0 &&
                      rows_on_boundaries<kVec>(a.cols, p.gate, p.up, p.dy, static_cast<const T*>(p.y),
                                               static_cast<const T*>(p.dgate), static_cast<const T*>(p.dup));
    const int64_t groups = fast ? a.cols / kVec : a.cols;
    const dim3 block = row_block(groups);
    const dim3 blocks(blocks_of(groups, block.x, 132 * 16), blocks_of(a.rows, block.y, 65535));
    launch(context, what, fast ? swiglu<T, kVec> : swiglu<T, 1>, Grid{blocks, block}, p, a.rows, a.cols,
           a.stride);
  });
}

void activation_forward(ExecutionContext& context, Activation f, Ref y, Ref x, int64_t count) {
  with_function(f, [&]<class F>(F) { map_elements(context, "activation_forward", count, Value<F>{}, y, x); });
}

void activation_backward(ExecutionContext& context, Activation f, Ref dx, Ref dy, Ref x, int64_t count) {
  with_function(
      f, [&]<class F>(F) { map_elements(context, "activation_backward", count, Slope<F>{}, dx, dy, x); });
}

void swiglu_forward(ExecutionContext& context, const SwigluArgs& a) {
  run_swiglu(context, "swiglu_forward", a);
}

void swiglu_backward(ExecutionContext& context, const SwigluArgs& a) {
  run_swiglu(context, "swiglu_backward", a);
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const ActivationKernels* ActivationKernels::cuda() {
  static constexpr ActivationKernels table{
      .activation_forward = cuda::activation_forward,
      .activation_backward = cuda::activation_backward,
      .swiglu_forward = cuda::swiglu_forward,
      .swiglu_backward = cuda::swiglu_backward,
  };
  return &table;
}

}  // namespace sherd
