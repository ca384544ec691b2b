#include <sherd/nn/kernels/norm/norm.h>

#include "cuda_held_rows.h"

namespace sherd::cuda {

// cuda_layer_norm.cu
void layer_norm_forward(ExecutionContext&, const LayerNormArgs&);
void layer_norm_backward(ExecutionContext&, const LayerNormArgs&);

namespace {

template <class T>
__device__ float squares_of(const Pack<T>& x) {
  float sum = 0;
#pragma unroll
  for (int k = 0; k < Pack<T>::kCount; ++k) sum = fmaf(x[k], x[k], sum);
  return sum;
}

template <class T>
__device__ Pack<T> normalised(const Pack<T>& x, const Pack<T>& w, float rstd) {
  return pack_of<T>([&](int k) { return x[k] * rstd * w[k]; });
}

template <class T, int kThreads, bool kAligned>
__global__ void __launch_bounds__(kBlockThreads<kThreads>) forward_rows(RmsNormArgs a) {
  const RowThread<kThreads> me;
  if (me.row >= a.rows) return;
  const HeldRow<T, kThreads, kAligned> x(row_of<T, kAligned>(a.x, me.row, a.cols), me.thread);
  const PackedRow<T, kAligned> w = row_of<T, kAligned>(a.w, 0, a.cols),
                               y = row_of<T, kAligned>(a.y, me.row, a.cols);
  const int packs = y.packs();
  float squares = 0;
  each_pack<kThreads>(
      packs, me.thread, [&](int k, int) { squares += squares_of(x.held[k]); },
      [&](int pack) { squares += squares_of(x.row.load(pack)); });
  squares = group_reduce<kThreads>(squares, Add{});
  const float rstd = 1.0f / sqrtf(squares / static_cast<float>(a.cols) + a.eps);
  if (me.thread == 0) static_cast<float*>(a.rstd.data)[me.row] = rstd;
  each_pack<kThreads>(
      packs, me.thread, [&](int k, int pack) { y.store(pack, normalised(x.held[k], w.load(pack), rstd)); },
      [&](int pack) { y.store(pack, normalised(x.row.load(pack), w.load(pack), rstd)); });
}

template <class T>
__device__ float dot_of(const Pack<T>& dy, const Pack<T>& w, const Pack<T>& x) {
  float sum = 0;
#pragma unroll
  for (int k = 0; k < Pack<T>::kCount; ++k) sum = fmaf(dy[k] * w[k], x[k], sum);
  return sum;
}

/// dx; adds the row's share of dw.
template <class T>
__device__ Pack<T> gradient(const Pack<T>& dy, const Pack<T>& w, const Pack<T>& x, float rstd, float mean,
                            float (&dw)[Pack<T>::kCount]) {
  return pack_of<T>([&](int k) {
    dw[k] = fmaf(dy[k], x[k] * rstd, dw[k]);
    return rstd * fmaf(-x[k], mean, dy[k] * w[k]);
  });
}

/// Group p takes rows p, p + parts, ... and leaves their sum for dw in row p of `sums` [parts, cols].
template <class T, int kThreads, bool kAligned>
__global__ void __launch_bounds__(kBlockThreads<kThreads>)
    backward_rows(RmsNormArgs a, float* sums, int64_t parts) {
  constexpr int kCount = Pack<T>::kCount;
  const RowThread<kThreads> me;
  if (me.row >= parts) return;
  const PackedRow<T, kAligned> w = row_of<T, kAligned>(a.w, 0, a.cols);
  const int packs = w.packs();
  float* const mine = sums + me.row * a.cols;
  // Its elements [pack * kCount, ...) are this thread's alone.
  const auto keep = [&](int pack, const float(&dw)[kCount]) {
#pragma unroll
    for (int k = 0; k < kCount; ++k)
      if (pack * kCount + k < a.cols) mine[pack * kCount + k] = dw[k];
  };
  float sum[kHeld][kCount] = {};
  for (int64_t row = me.row; row < a.rows; row += parts) {
    const HeldRow<T, kThreads, kAligned> x(row_of<T, kAligned>(a.x, row, a.cols), me.thread);
    const HeldRow<T, kThreads, kAligned> dy(row_of<T, kAligned>(a.dy, row, a.cols), me.thread);
    const PackedRow<T, kAligned> dx = row_of<T, kAligned>(a.dx, row, a.cols);
    const float rstd = static_cast<const float*>(a.rstd.data)[row];
    float dot = 0;
    each_pack<kThreads>(
        packs, me.thread, [&](int k, int pack) { dot += dot_of(dy.held[k], w.load(pack), x.held[k]); },
        [&](int pack) { dot += dot_of(dy.row.load(pack), w.load(pack), x.row.load(pack)); });
    dot = group_reduce<kThreads>(dot, Add{});
    const float mean = dot * rstd * rstd / static_cast<float>(a.cols);
    each_pack<kThreads>(
        packs, me.thread,
        [&](int k, int pack) {
          dx.store(pack, gradient(dy.held[k], w.load(pack), x.held[k], rstd, mean, sum[k]));
        },
        [&](int pack) {
          float dw[kCount];
#pragma unroll
          for (int k = 0; k < kCount; ++k)
            dw[k] = row == me.row || pack * kCount + k >= a.cols ? 0 : mine[pack * kCount + k];
          // dx may be dy or x: all of a pack is read before it is written.
          dx.store(pack, gradient(dy.row.load(pack), w.load(pack), x.row.load(pack), rstd, mean, dw));
          keep(pack, dw);
        });
  }
  each_pack<kThreads>(
      packs, me.thread, [&](int k, int pack) { keep(pack, sum[k]); }, [](int) {});
}

void rms_norm_forward(ExecutionContext& context, const RmsNormArgs& a) {
  with_f32_bf16(a.x.dtype, [&](auto type) {
    using T = decltype(type);
    with_form<T>(a.cols, {a.x.data, a.w.data, a.y.data}, [&](auto threads, auto aligned) {
      launch(context, "rms_norm_forward", forward_rows<T, threads(), aligned()>,
             grid_of_rows<threads()>(a.rows), a);
    });
  });
}

void rms_norm_backward(ExecutionContext& context, const RmsNormArgs& a) {
  if (a.rows == 0 || a.cols == 0) return;
  with_f32_bf16(a.x.dtype, [&](auto type) {
    using T = decltype(type);
    with_form<T>(a.cols, {a.x.data, a.w.data, a.dy.data, a.dx.data}, [&](auto threads, auto aligned) {
      add_row_sums<threads()>(context, "rms_norm_backward", a.dw.as<float>(), a.rows, a.cols,
                              [&](const Grid& grid, float* sums, int64_t parts) {
                                launch(context, "rms_norm_backward", backward_rows<T, threads(), aligned()>,
                                       grid, a, sums, parts);
                              });
    });
  });
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const NormKernels* NormKernels::cuda() {
  static constexpr NormKernels table{
      .rms_norm_forward = cuda::rms_norm_forward,
      .rms_norm_backward = cuda::rms_norm_backward,
      .layer_norm_forward = cuda::layer_norm_forward,
      .layer_norm_backward = cuda::layer_norm_backward,
  };
  return &table;
}

}  // namespace sherd
