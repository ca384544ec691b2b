#include <sherd/nn/kernels/vocab_parallel/vocab_parallel.h>

#include <sherd/nn/kernels/softmax/cuda_softmax.h>

namespace sherd::cuda {
namespace {

template <class T, int kThreads, bool kAligned>
__global__ void __launch_bounds__(kBlockThreads<kThreads>) partial_rows(VocabParallelArgs a) {
  const RowThread<kThreads> me;
  if (me.row >= a.rows) return;
  const LogitsRow<T, kAligned> x(a.logits, me.row, a.cols, a.ld);
  const Softmax of = softmax_of<kThreads>(x, me.thread, nullptr, 0);
  if (me.thread != 0) return;
  const int64_t target = a.targets[me.row] - a.begin;
  float* const stats = a.stats + 3 * me.row;
  stats[0] = of.max;
  stats[1] = of.sum;
  stats[2] = target >= 0 && target < a.cols ? to_float(x.data[target]) : 0.0f;
}

__global__ void combine_rows_of_parts(VocabParallelArgs a) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= a.rows) return;
  const auto stat = [&](int64_t part, int which) { return a.stats[(part * a.rows + i) * 3 + which]; };
  float max = -INFINITY;
  for (int64_t p = 0; p < a.parts; ++p) max = fmaxf(max, stat(p, 0));
  float sum = 0, target = 0;
  for (int64_t p = 0; p < a.parts; ++p) {
    sum += stat(p, 1) * expf(stat(p, 0) - max);
    target += stat(p, 2);
  }
  const float log_sum = logf(sum);
  const bool ignored = a.targets[i] == kIgnoredTarget;
  a.lse[i] = ignored ? INFINITY : max + log_sum;
  a.losses[i] = ignored ? 0.0f : max - target + log_sum;
}

template <class T, int kThreads, bool kAligned>
__global__ void __launch_bounds__(kBlockThreads<kThreads>) backward_rows(VocabParallelArgs a) {
  const RowThread<kThreads> me;
  if (me.row >= a.rows) return;
  const LogitsRow<T, kAligned> x(a.logits, me.row, a.cols, a.ld);
  const LogitsRow<T, kAligned> dx(a.dlogits, me.row, a.cols, a.ld);
  const int64_t target = a.targets[me.row] - a.begin;
  const float lse = a.lse[me.row];
  // The thread that writes it reads it first: dlogits may be logits.
  const bool mine = target >= 0 && target < a.cols && owns<kThreads, T>(me.thread, target);
  const float p = mine ? exp_of(to_float(x.data[target]) - lse) : 0;
  scaled_exp<kThreads>(dx, x, me.thread, nullptr, 0, lse, a.scale);
  if (mine) put(dx.data[target], (p - 1.0f) * a.scale);
}

void vocab_parallel_partial(ExecutionContext& context, const VocabParallelArgs& a) {
  with_f32_bf16(a.logits.dtype, [&](auto type) {
    using T = decltype(type);
    with_logits_form<T>(a.cols, a.ld, {a.logits.data}, [&](auto threads, auto aligned) {
      launch(context, "vocab_parallel_partial", partial_rows<T, threads(), aligned()>,
             grid_of_rows<threads()>(a.rows), a);
    });
  });
}

void vocab_parallel_combine(ExecutionContext& context, const VocabParallelArgs& a) {
  const Grid grid{dim3(static_cast<unsigned>((a.rows + 127) / 128)), dim3(128)};
  launch(context, "vocab_parallel_combine", combine_rows_of_parts, grid, a);
}

void vocab_parallel_backward(ExecutionContext& context, const VocabParallelArgs& a) {
  with_f32_bf16(a.logits.dtype, [&](auto type) {
    using T = decltype(type);
    with_logits_form<T>(a.cols, a.ld, {a.logits.data, a.dlogits.data}, [&](auto threads, auto aligned) {
      launch(context, "vocab_parallel_backward", backward_rows<T, threads(), aligned()>,
             grid_of_rows<threads()>(a.rows), a);
    });
  });
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const VocabParallelKernels* VocabParallelKernels::cuda() {
  static constexpr VocabParallelKernels table{
      .vocab_parallel_partial = cuda::vocab_parallel_partial,
      .vocab_parallel_combine = cuda::vocab_parallel_combine,
      .vocab_parallel_backward = cuda::vocab_parallel_backward,
  };
  return &table;
}

}  // namespace sherd
