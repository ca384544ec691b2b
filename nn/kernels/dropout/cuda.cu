#include <sherd/nn/kernels/dropout/dropout.h>

#include <sherd/kernels/device/cuda/vector.h>
#include <sherd/kernels/random/cuda_philox.h>

namespace sherd::cuda {
namespace {

/// One thread for the four elements that share a block of Philox: `groups` of them in each row.
template <class T, bool kAligned>
__global__ void __launch_bounds__(256) drop(T* y, const T* x, int64_t rows, int64_t cols, int64_t groups,
                                            DropoutKey key, uint32_t threshold, float factor) {
  for (int64_t g = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; g < rows * groups;
       g += int64_t{gridDim.x} * blockDim.x) {
    const int64_t r = g / groups, group = g % groups, at = r * cols + 4 * group;
    const auto row = static_cast<uint64_t>(key.first_row + r);
    const Words words =
        philox(static_cast<uint64_t>(group) | row << 32, key.key, static_cast<uint32_t>(row >> 32), key.call);
    const auto dropped = [&](T& v, int k) {
      put(v, words.v[k] < threshold ? 0.0f : __fmul_rn(to_float(v), factor));
    };
    if constexpr (kAligned) {
      Vec<T, 4> v = load<4>(x, at);
#pragma unroll
      for (int k = 0; k < 4; ++k) dropped(v[k], k);
      store(y, at, v);
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (4 * group + k >= cols) break;
        T v = x[at + k];
        dropped(v, k);
        y[at + k] = v;
      }
    }
  }
}

void dropout(ExecutionContext& context, const DropoutArgs& a) {
  if (a.rows <= 0 || a.cols <= 0) return;
  with_f32_bf16(a.x.dtype, [&]<class T>(T) {
    T* y = a.y.as<T>();
    const T* x = a.x.as<T>();
    const int64_t groups = (a.cols + 3) / 4;
    launch(context, "dropout", rows_on_boundaries<4>(a.cols, y, x) ? drop<T, true> : drop<T, false>,
           grid_for(a.rows * groups), y, x, a.rows, a.cols, groups, a.key, a.threshold(), 1 / (1 - a.p));
  });
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const DropoutKernels* DropoutKernels::cuda() {
  static constexpr DropoutKernels table{.dropout = cuda::dropout};
  return &table;
}

}  // namespace sherd
