#include <sherd/nn/kernels/rope/rope.h>

#include <sherd/kernels/device/cuda/vector.h>

namespace sherd::cuda {
namespace {

/// A block goes over rows; thread (i, j) computes the angles of components i, i + blockDim.x, ... of a half
/// once for the heads j, j + blockDim.y, ...
template <class T>
__global__ void __launch_bounds__(256) rope_kernel(RopeArgs a) {
  const int half = static_cast<int>(a.head_dim / 2), width = 2 * half;
  const auto turned = a.heads * a.head_dim;
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  for (int64_t row = blockIdx.x; row < a.batch * a.seq; row += gridDim.x) {
    const T* const x = static_cast<const T*>(a.x.data) + row * a.columns;
    T* const y = static_cast<T*>(a.y.data) + row * a.columns;
    const auto position = static_cast<float>(a.first_position + row % a.seq);
    for (int d = static_cast<int>(threadIdx.x); d < half; d += static_cast<int>(blockDim.x)) {
      float sin, cos;
      sincosf(__fmul_rn(position, a.inv_freq[d]), &sin, &cos);
      if (a.inverse) sin = -sin;
      for (int64_t c = int64_t{threadIdx.y} * width + d; c < turned; c += int64_t{blockDim.y} * width) {
        const float x1 = to_float(x[c]), x2 = to_float(x[c + half]);
        put(y[c], fmaf(x1, cos, -(x2 * sin)));
        put(y[c + half], fmaf(x2, cos, x1 * sin));
      }
    }
    if (x == y) continue;
    for (int64_t c = turned + thread; c < a.columns; c += blockDim.x * blockDim.y) y[c] = x[c];
  }
}

void rope(ExecutionContext& context, const RopeArgs& a) {
  const int64_t rows = a.batch * a.seq;
  if (rows == 0) return;
  with_f32_bf16(a.x.dtype, [&](auto type) {
    const Grid grid{dim3(blocks_of(rows, 1, 132 * 16)), row_block(a.head_dim / 2)};
    launch(context, "rope", rope_kernel<decltype(type)>, grid, a);
  });
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const RopeKernels* RopeKernels::cuda() {
  static constexpr RopeKernels table{.rope = cuda::rope};
  return &table;
}

}  // namespace sherd
