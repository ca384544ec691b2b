#include <sherd/nn/kernels/strided/strided.h>

#include <sherd/kernels/device/cuda/vector.h>

namespace sherd::cuda {
namespace {

/// The function of one element. A branch that all threads of a launch take alike costs less than memory does.
__device__ inline float map_value(MapFunction f, float a, float b, float c) {
  switch (f) {
    case MapFunction::copy:
      return a;
    case MapFunction::add:
      return a + b;
    case MapFunction::subtract:
      return a - b;
    case MapFunction::multiply:
      return a * b;
    case MapFunction::divide:
      return a / b;
    case MapFunction::power:
      return powf(a, b);
    case MapFunction::maximum:
      return a > b || a != a ? a : b;
    case MapFunction::less:
      return a < b ? 1.0f : 0.0f;
    case MapFunction::less_equal:
      return a <= b ? 1.0f : 0.0f;
    case MapFunction::equal:
      return a == b ? 1.0f : 0.0f;
    case MapFunction::exp:
      return expf(a);
    case MapFunction::log:
      return logf(a);
    case MapFunction::sqrt:
      return sqrtf(a);
    case MapFunction::tanh:
      return tanhf(a);
    case MapFunction::sigmoid:
      return 1.0f / (1.0f + expf(-a));
    case MapFunction::where:
      return a == 0.0f ? c : b;
    case MapFunction::divide_slope:
      return -(a / c) * (b / c);
    case MapFunction::power_base:
      return c == 0.0f ? 0.0f : a * c * powf(b, c - 1.0f);
    case MapFunction::power_exponent:
      return b == 0.0f && c >= 0.0f ? 0.0f : a * powf(b, c) * logf(b);
    case MapFunction::maximum_share:
      return b > c ? a : b == c ? 0.5f * a : 0.0f;
    case MapFunction::sqrt_slope:
      return a / (2.0f * b);
    case MapFunction::tanh_slope:
      return a * ((1.0f - b) * (1.0f + b));
    case MapFunction::sigmoid_slope:
      return a * (b * (1.0f - b));
  }
  return 0.0f;
}

/// Groups of N neighbours along the last dimension, where every operand is contiguous, constant or repeated; N = 1
/// otherwise. Of dimensions the last counts groups.
template <class T, int N, class Index>
__global__ void __launch_bounds__(256) map_groups(MapArgs a, Index groups) {
  const int last = a.dims - 1;
  for (Index g = Index{blockIdx.x} * blockDim.x + threadIdx.x; g < groups;
       g += Index{gridDim.x} * blockDim.x) {
    Index rest = g;
    int64_t to = 0, from[kMapInputs] = {};
    for (int d = last; d >= 0; --d) {
      const auto size = static_cast<Index>(a.sizes[d]);
      const int64_t i = static_cast<int64_t>(d == 0 ? rest : rest % size) * (d == last ? N : 1);
      rest /= size;
      to += i * a.out.strides[d];
      for (int k = 0; k < kMapInputs; ++k) from[k] += i * a.in[k].strides[d];
    }
    float v[kMapInputs][N];
#pragma unroll
    for (int k = 0; k < kMapInputs; ++k) {
      const MapOperand& o = a.in[k];
      const T* p = static_cast<const T*>(o.ref.data) + from[k];
      if (k >= a.inputs || p == nullptr || last < 0 || o.strides[last] != 1) {
        const float one = k >= a.inputs           ? 0.0f
                          : o.ref.data == nullptr ? static_cast<float>(o.value)
                                                  : to_float(*p);
#pragma unroll
        for (int n = 0; n < N; ++n) v[k][n] = one;
        continue;
      }
      const Vec<T, N> x = load<N>(p, 0);
#pragma unroll
      for (int n = 0; n < N; ++n) v[k][n] = to_float(x[n]);
    }
    Vec<T, N> y;
#pragma unroll
    for (int n = 0; n < N; ++n) put(y[n], map_value(a.function, v[0][n], v[1][n], v[2][n]));
    store(static_cast<T*>(a.out.ref.data), to, y);
  }
}

/// Returns whether groups of N along the last dimension are whole and aligned in every operand.
template <class T, int N>
bool grouped(const MapArgs& a) {
  if (a.dims == 0 || a.sizes[a.dims - 1] % N != 0) return false;
  const auto fits = [&](const MapOperand& o, bool writes) {
    const int64_t last = o.strides[a.dims - 1];
    if (o.ref.data == nullptr || (last == 0 && !writes)) return true;
    bool whole = last == 1 && on_boundary<T, N>(o.ref.as<T>(), 0);
    for (int d = 0; d < a.dims - 1; ++d) whole = whole && o.strides[d] % N == 0;
    return whole;
  };
  bool all = fits(a.out, true);
  for (int k = 0; k < a.inputs; ++k) all = all && fits(a.in[k], false);
  return all;
}

void map(ExecutionContext& context, const MapArgs& args) {
  with_f32_bf16(args.out.ref.dtype, [&]<class T>(T) {
    constexpr int kVec = 16 / sizeof(T);
    MapArgs a = args;
    const bool groups_fit = grouped<T, kVec>(a);
    if (groups_fit) a.sizes[a.dims - 1] /= kVec;
    const int64_t groups = a.count();
    const char* what = name_of(a.function);
    if (groups < INT32_MAX)
      launch(context, what, groups_fit ? map_groups<T, kVec, uint32_t> : map_groups<T, 1, uint32_t>,
             grid_for(groups), a, groups);
    else
      launch(context, what, groups_fit ? map_groups<T, kVec, uint64_t> : map_groups<T, 1, uint64_t>,
             grid_for(groups), a, groups);
  });
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const StridedKernels* StridedKernels::cuda() {
  static constexpr StridedKernels table{.map = cuda::map};
  return &table;
}

}  // namespace sherd
