#include <sherd/nn/kernels/softmax/softmax.h>

#include "cuda_softmax.h"

namespace sherd::cuda {
namespace {

template <class T, int kThreads, bool kAligned>
__global__ void __launch_bounds__(kBlockThreads<kThreads>) softmax_rows(SoftmaxArgs a) {
  const RowThread<kThreads> me;
  if (me.row >= a.rows) return;
  const PackedRow<T, kAligned> x = row_of<T, kAligned>(a.x, me.row, a.cols);
  const Softmax of = softmax_of<kThreads>(x, me.thread, nullptr, 0);
  scaled_exp<kThreads>(row_of<T, kAligned>(a.y, me.row, a.cols), x, me.thread, nullptr, 0, of.max,
                       1.0f / of.sum);
}

template <class T, int kThreads, bool kAligned>
__global__ void __launch_bounds__(kBlockThreads<kThreads>) softmax_backward_rows(SoftmaxArgs a) {
  const RowThread<kThreads> me;
  if (me.row >= a.rows) return;
  const PackedRow<T, kAligned> y = row_of<T, kAligned>(a.y, me.row, a.cols),
                               dy = row_of<T, kAligned>(a.dy, me.row, a.cols),
                               dx = row_of<T, kAligned>(a.dx, me.row, a.cols);
  const int packs = y.packs();
  float dot = 0;
  for (int pack = me.thread; pack < packs; pack += kThreads) {
    const Pack<T> p = y.load(pack), d = dy.load(pack);
#pragma unroll
    for (int k = 0; k < Pack<T>::kCount; ++k) dot = fmaf(p[k], d[k], dot);
  }
  dot = group_reduce<kThreads>(dot, Add{});
  for (int pack = me.thread; pack < packs; pack += kThreads) {
    const Pack<T> p = y.load(pack), d = dy.load(pack);
    dx.store(pack, pack_of<T>([&](int k) { return p[k] * (d[k] - dot); }));
  }
}

void softmax_forward(ExecutionContext& context, const SoftmaxArgs& a) {
  with_f32_bf16(a.x.dtype, [&](auto type) {
    using T = decltype(type);
    with_logits_form<T>(a.cols, a.cols, {a.x.data, a.y.data}, [&](auto threads, auto aligned) {
      launch(context, "softmax_forward", softmax_rows<T, threads(), aligned()>,
             grid_of_rows<threads()>(a.rows), a);
    });
  });
}

void softmax_backward(ExecutionContext& context, const SoftmaxArgs& a) {
  with_f32_bf16(a.y.dtype, [&](auto type) {
    using T = decltype(type);
    with_logits_form<T>(a.cols, a.cols, {a.y.data, a.dy.data, a.dx.data}, [&](auto threads, auto aligned) {
      launch(context, "softmax_backward", softmax_backward_rows<T, threads(), aligned()>,
             grid_of_rows<threads()>(a.rows), a);
    });
  });
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const SoftmaxKernels* SoftmaxKernels::cuda() {
  static constexpr SoftmaxKernels table{
      .softmax_forward = cuda::softmax_forward,
      .softmax_backward = cuda::softmax_backward,
  };
  return &table;
}

}  // namespace sherd
