#include <sherd/nn/kernels/reduction/reduction.h>

#include <sherd/kernels/device/cuda/rows.h>

namespace sherd::cuda {
namespace {

constexpr int64_t kRowRun = 32;  // rows whose sum by columns is fp32

struct MaxOrNan {
  __device__ float operator()(float a, float b) const { return a > b || a != a ? a : b; }
};

template <Reduction kOp>
__device__ float reduced(float a, float b) {
  if constexpr (kOp == Reduction::sum) return a + b;
  return MaxOrNan{}(a, b);
}
template <Reduction kOp>
__device__ float neutral() {
  return kOp == Reduction::sum ? 0.0f : -INFINITY;
}

/// Same as ReductionArgs::chunks(), which is a host function.
__device__ int64_t chunks_of(const ReductionArgs& a) { return (a.n + a.chunk - 1) / a.chunk; }

/// Rows of contiguous elements (inner = 1), kThreads threads for a chunk of one.
template <Reduction kOp, class T, class Out, int kThreads>
__global__ void __launch_bounds__(kBlockThreads<kThreads>) reduce_rows(ReductionArgs a) {
  const RowThread<kThreads> place;
  const int64_t chunks = chunks_of(a), tasks = a.outer * chunks;
  const bool inside = place.row < tasks;
  float part = neutral<kOp>();
  if (inside) {
    const int64_t from = place.row % chunks * a.chunk;
    const int64_t n = a.n - from < a.chunk ? a.n - from : a.chunk;
    const T* x = static_cast<const T*>(a.x.data) + place.row / chunks * a.n + from;
    for (int64_t i = place.thread; i < n; i += kThreads) part = reduced<kOp>(part, to_float(x[i]));
  }
  if constexpr (kOp == Reduction::sum)
    part = group_reduce<kThreads>(part, Add{});
  else
    part = group_reduce<kThreads>(part, MaxOrNan{});
  if (inside && place.thread == 0)
    put(static_cast<Out*>(a.out.data)[place.row], static_cast<float>(a.factor * part));
}

/// A thread for each column of a chunk.
template <Reduction kOp, class T, class Out>
__global__ void __launch_bounds__(256) reduce_columns(ReductionArgs a) {
  const int64_t chunks = chunks_of(a), count = a.outer * chunks * a.inner;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t task = i / a.inner, from = task % chunks * a.chunk;
    const int64_t n = a.n - from < a.chunk ? a.n - from : a.chunk;
    const T* x = static_cast<const T*>(a.x.data) + (task / chunks * a.n + from) * a.inner + i % a.inner;
    double total = neutral<kOp>();
    for (int64_t begin = 0; begin < n; begin += kRowRun) {
      float part = neutral<kOp>();
      for (int64_t r = begin; r < n && r < begin + kRowRun; ++r)
        part = reduced<kOp>(part, to_float(x[r * a.inner]));
      if constexpr (kOp == Reduction::sum)
        total += part;
      else
        total = reduced<kOp>(static_cast<float>(total), part);
    }
    put(static_cast<Out*>(a.out.data)[i], static_cast<float>(a.factor * total));
  }
}

template <Reduction kOp, class T, class Out>
void reduce_of(ExecutionContext& context, const char* what, const ReductionArgs& a) {
  const int64_t tasks = a.outer * a.chunks();
  if (a.inner > 1)
    launch(context, what, reduce_columns<kOp, T, Out>, grid_for(tasks * a.inner), a);
  else if (a.chunk <= 1024)
    launch(context, what, reduce_rows<kOp, T, Out, 32>, grid_of_rows<32>(tasks), a);
  else
    launch(context, what, reduce_rows<kOp, T, Out, 256>, grid_of_rows<256>(tasks), a);
}

void reduce(ExecutionContext& context, const ReductionArgs& a) {
  with_f32_bf16(a.x.dtype, [&]<class T>(T) {
    with_f32_bf16(a.out.dtype, [&]<class Out>(Out) {
      if (a.op == Reduction::sum)
        reduce_of<Reduction::sum, T, Out>(context, "sum", a);
      else
        reduce_of<Reduction::max, T, Out>(context, "max", a);
    });
  });
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const ReductionKernels* ReductionKernels::cuda() {
  static constexpr ReductionKernels table{.reduce = cuda::reduce};
  return &table;
}

}  // namespace sherd
