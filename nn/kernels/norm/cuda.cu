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

__device__ inline int64_t columns_of(const RmsNormArgs& a) { return a.sums.data ? a.of : a.cols; }

template <class T, int kThreads, bool kAligned>
__global__ void __launch_bounds__(kBlockThreads<kThreads>) forward_rows(RmsNormArgs a) {
  const RowThread<kThreads> me;
  if (me.row >= a.rows) return;
  const HeldRow<T, kThreads, kAligned> x(row_of<T, kAligned>(a.x, me.row, a.cols), me.thread);
  const PackedRow<T, kAligned> w = row_of<T, kAligned>(a.w, 0, a.cols),
                               y = row_of<T, kAligned>(a.y, me.row, a.cols);
  const int packs = y.packs();
  float squares = 0;
  if (a.sums.data != nullptr) {
    squares = static_cast<const float*>(a.sums.data)[me.row];
  } else {
    each_pack<kThreads>(
        packs, me.thread, [&](int k, int) { squares += squares_of(x.held[k]); },
        [&](int pack) { squares += squares_of(x.row.load(pack)); });
    squares = group_reduce<kThreads>(squares, Add{});
  }
  const float rstd = 1.0f / sqrtf(squares / static_cast<float>(columns_of(a)) + a.eps);
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

/// Sums over the columns here: of x^2, with dy of dy * w * x.
template <class T, int kThreads, bool kAligned>
__global__ void __launch_bounds__(kBlockThreads<kThreads>) sum_rows(RmsNormArgs a) {
  const RowThread<kThreads> me;
  if (me.row >= a.rows) return;
  const PackedRow<T, kAligned> x = row_of<T, kAligned>(a.x, me.row, a.cols),
                               w = row_of<T, kAligned>(a.w, 0, a.cols),
                               dy = row_of<T, kAligned>(a.dy, me.row, a.cols);
  float sum = 0;
  for (int pack = me.thread; pack < x.packs(); pack += kThreads)
    sum +=
        a.dy.data == nullptr ? squares_of(x.load(pack)) : dot_of(dy.load(pack), w.load(pack), x.load(pack));
  sum = group_reduce<kThreads>(sum, Add{});
  if (me.thread == 0) static_cast<float*>(a.sums.data)[me.row] = sum;
}

/// A row of the backward: add() sums dy * w * x, whose mean with rstd^2 is in every element's dx.
struct RmsRow {
  const float* whole;  // sum over all columns, or null
  int64_t columns;
  float rstd, dot = 0, mean = 0;

  __device__ RmsRow(const RmsNormArgs& a, int64_t row)
      : whole(a.sums.data == nullptr ? nullptr : static_cast<const float*>(a.sums.data) + row),
        columns(columns_of(a)),
        rstd(static_cast<const float*>(a.rstd.data)[row]) {}

  template <class T>
  __device__ void add(const Pack<T>& dy, const Pack<T>& w, const Pack<T>& x) {
    dot += dot_of(dy, w, x);
  }

  template <int kThreads>
  __device__ void reduce(int64_t) {
    const float sum = whole == nullptr ? group_reduce<kThreads>(dot, Add{}) : *whole;
    mean = sum * rstd * rstd / static_cast<float>(columns);
  }

  template <class T>
  __device__ Pack<T> gradient(const Pack<T>& dy, const Pack<T>& w, const Pack<T>& x,
                              float (&dw)[Pack<T>::kCount]) const {
    return pack_of<T>([&](int k) {
      dw[k] = fmaf(dy[k], x[k] * rstd, dw[k]);
      return rstd * fmaf(-x[k], mean, dy[k] * w[k]);
    });
  }
};

void rms_norm_forward(ExecutionContext& context, const RmsNormArgs& a) {
  with_f32_bf16(a.x.dtype, [&](auto type) {
    using T = decltype(type);
    with_form<T>(a.cols, {a.x.data, a.w.data, a.y.data}, [&](auto threads, auto aligned) {
      launch(context, "rms_norm_forward", forward_rows<T, threads(), aligned()>,
             grid_of_rows<threads()>(a.rows), a);
    });
  });
}

void rms_norm_sums(ExecutionContext& context, const RmsNormArgs& a) {
  with_f32_bf16(a.x.dtype, [&](auto type) {
    using T = decltype(type);
    with_form<T>(a.cols, {a.x.data, a.w.data, a.dy.data}, [&](auto threads, auto aligned) {
      launch(context, "rms_norm_sums", sum_rows<T, threads(), aligned()>, grid_of_rows<threads()>(a.rows), a);
    });
  });
}

void rms_norm_backward(ExecutionContext& context, const RmsNormArgs& a) {
  norm_backward<RmsRow>(context, "rms_norm_backward", a);
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const NormKernels* NormKernels::cuda() {
  static constexpr NormKernels table{
      .rms_norm_forward = cuda::rms_norm_forward,
      .rms_norm_backward = cuda::rms_norm_backward,
      .rms_norm_sums = cuda::rms_norm_sums,
      .layer_norm_forward = cuda::layer_norm_forward,
      .layer_norm_backward = cuda::layer_norm_backward,
  };
  return &table;
}

}  // namespace sherd
