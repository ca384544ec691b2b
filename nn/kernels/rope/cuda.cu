#include <sherd/nn/kernels/rope/rope.h>

#include <algorithm>

#include <sherd/kernels/device/cuda/vector.h>

namespace sherd::cuda {
namespace {

/// Thread (i, j, k) of a block takes row k of its rows and the components [i * N, i * N + N), [(i + blockDim.x) * N, ...) of
/// a half of what is rotated: it computes their angles once for the heads j, j + blockDim.y, ...
template <class T, int N>
__global__ void __launch_bounds__(256) rope_kernel(RopeArgs a) {
  const int64_t half = a.rotary / 2, turned = a.heads * a.head_dim;
  for (int64_t row = int64_t{blockIdx.x} * blockDim.z + threadIdx.z; row < a.batch * a.seq;
       row += int64_t{gridDim.x} * blockDim.z) {
    const T* const x = static_cast<const T*>(a.x.data) + row * a.columns;
    T* const y = static_cast<T*>(a.y.data) + row * a.columns;
    const auto position = static_cast<float>(a.first_position + row % a.seq);
    for (int64_t d = threadIdx.x * N; d < half; d += blockDim.x * N) {
      float sin[N], cos[N];
#pragma unroll
      for (int k = 0; k < N; ++k) {
        sincosf(__fmul_rn(position, a.inv_freq[d + k]), &sin[k], &cos[k]);
        sin[k] *= a.inverse ? -a.scale : a.scale;
        cos[k] *= a.scale;
      }
      for (int64_t c = threadIdx.y * a.head_dim + d; c < turned; c += blockDim.y * a.head_dim) {
        Vec<T, N> first = load<N>(x, c), second = load<N>(x, c + half);
#pragma unroll
        for (int k = 0; k < N; ++k) {
          const float x1 = to_float(first[k]), x2 = to_float(second[k]);
          put(first[k], fmaf(x1, cos[k], -(x2 * sin[k])));
          put(second[k], fmaf(x2, cos[k], x1 * sin[k]));
        }
        store(y, c, first);
        store(y, c + half, second);
      }
    }
    if (x == y) continue;
    const int64_t thread = threadIdx.y * blockDim.x + threadIdx.x;
    const int64_t rest = a.head_dim - a.rotary;  // of each head
    for (int64_t c = thread; c < a.heads * rest; c += blockDim.x * blockDim.y)
      y[c / rest * a.head_dim + a.rotary + c % rest] = x[c / rest * a.head_dim + a.rotary + c % rest];
    for (int64_t c = turned + thread * N; c < a.columns; c += blockDim.x * blockDim.y * N)
      store(y, c, load<N>(x, c));
  }
}

void rope(ExecutionContext& context, const RopeArgs& a) {
  const int64_t rows = a.batch * a.seq, half = a.rotary / 2;
  if (rows == 0) return;
  with_f32_bf16(a.x.dtype, [&]<class T>(T) {
    constexpr int kVec = 16 / sizeof(T);
    const bool fast = half % kVec == 0 && a.head_dim % kVec == 0 &&
                      rows_on_boundaries<kVec>(a.columns, a.x.as<T>(), a.y.as<T>());
    dim3 block = row_block(fast ? half / kVec : half);
    block.z = std::max(1u, block.y / 8);  // a thread's angles serve every eighth head
    block.y /= block.z;
    launch(context, "rope", fast ? rope_kernel<T, kVec> : rope_kernel<T, 1>,
           Grid{dim3(blocks_of(rows, block.z, 132 * 16)), block}, a);
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
