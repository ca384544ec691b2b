#include <sherd/nn/kernels/sinks/sinks.h>

#include <cmath>

#include <sherd/kernels/device/cuda/block_reduce.h>
#include <sherd/kernels/device/cuda/vector.h>

namespace sherd::cuda {
namespace {

constexpr int kSinkWarps = 16;  // of a block

__device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / kWarp; }

/// Index into lse of a head of a row of out.
__device__ __forceinline__ int64_t sum_of(const SinksArgs& a, int64_t row, int64_t head) {
  return (row / a.seq * a.heads + head) * a.seq + row % a.seq;
}

/// A warp has one head of one row.
template <class T>
__global__ void __launch_bounds__(kSinkWarps* kWarp) sinks_forward_kernel(SinksArgs a) {
  const int64_t i = int64_t{blockIdx.x} * kSinkWarps + warp(), row = i / a.heads, head = i % a.heads;
  if (row >= a.batch * a.seq) return;
  const int64_t sum = sum_of(a, row, head);
  const float lse = a.lse[sum], sink = a.sinks[head], most = fmaxf(lse, sink);
  const float with = most + logf(expf(lse - most) + expf(sink - most)), factor = expf(lse - with);
  __syncwarp();  // all have read lse
  T* const out = static_cast<T*>(a.out.data) + i * a.head_dim;
  for (int64_t d = lane(); d < a.head_dim; d += kWarp) put(out[d], to_float(out[d]) * factor);
  if (lane() == 0) a.lse[sum] = with;
}

/// A block has one head; its warps take the rows in turns, and their sums are added in order.
template <class T>
__global__ void __launch_bounds__(kSinkWarps* kWarp) sinks_backward_kernel(SinksArgs a) {
  __shared__ double of_warp[kSinkWarps];
  const int64_t head = blockIdx.x;
  const double sink = a.sinks[head];
  double total = 0;
  for (int64_t row = warp(); row < a.batch * a.seq; row += kSinkWarps) {
    const int64_t first = (row * a.heads + head) * a.head_dim;
    const T *const out = static_cast<const T*>(a.out.data) + first, *const dout =
                                                                        static_cast<const T*>(a.dout.data) +
                                                                        first;
    float dot = 0;
    for (int64_t d = lane(); d < a.head_dim; d += kWarp) dot = fmaf(to_float(dout[d]), to_float(out[d]), dot);
    dot = warp_reduce(dot, Add{});
    total += exp(sink - static_cast<double>(a.lse[sum_of(a, row, head)])) * dot;
  }
  if (lane() == 0) of_warp[warp()] = total;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kSinkWarps; ++w) total += of_warp[w];
  a.dsinks[head] -= static_cast<float>(total);
}

void sinks_forward(ExecutionContext& context, const SinksArgs& a) {
  with_f32_bf16(a.out.dtype, [&](auto type) {
    const int64_t blocks = (a.batch * a.seq * a.heads + kSinkWarps - 1) / kSinkWarps;
    launch(context, "sinks_forward", sinks_forward_kernel<decltype(type)>,
           {dim3(static_cast<unsigned>(blocks)), dim3(kSinkWarps * kWarp)}, a);
  });
}

void sinks_backward(ExecutionContext& context, const SinksArgs& a) {
  with_f32_bf16(a.out.dtype, [&](auto type) {
    launch(context, "sinks_backward", sinks_backward_kernel<decltype(type)>,
           {dim3(static_cast<unsigned>(a.heads)), dim3(kSinkWarps * kWarp)}, a);
  });
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const SinksKernels* SinksKernels::cuda() {
  static constexpr SinksKernels table{.sinks_forward = cuda::sinks_forward,
                                      .sinks_backward = cuda::sinks_backward};
  return &table;
}

}  // namespace sherd
