#include <sherd/nn/kernels/norm/norm.h>

#include "cuda_held_rows.h"

namespace sherd::cuda {
namespace {

template <class T>
__device__ float sum_of(const Pack<T>& x) {
  float sum = 0;
#pragma unroll
  for (int k = 0; k < Pack<T>::kCount; ++k) sum += x[k];
  return sum;
}

/// Of (x - mean)^2 over the first `count` elements: a row's last pack is filled up with zeros, which are none
/// of it.
template <class T>
__device__ float squares_of(const Pack<T>& x, float mean, int count) {
  float sum = 0;
#pragma unroll
  for (int k = 0; k < Pack<T>::kCount; ++k)
    if (k < count) sum = fmaf(x[k] - mean, x[k] - mean, sum);
  return sum;
}

/// The mean first: differences from it keep the digits that the square of a large mean would take.
template <class T, int kThreads, bool kAligned>
__global__ void __launch_bounds__(kBlockThreads<kThreads>) layer_norm_rows(LayerNormArgs a) {
  constexpr int kCount = Pack<T>::kCount;
  const RowThread<kThreads> me;
  if (me.row >= a.rows) return;
  const HeldRow<T, kThreads, kAligned> x(row_of<T, kAligned>(a.x, me.row, a.cols), me.thread);
  const PackedRow<T, kAligned> w = row_of<T, kAligned>(a.w, 0, a.cols),
                               bias = row_of<T, kAligned>(a.bias, 0, a.cols),
                               y = row_of<T, kAligned>(a.y, me.row, a.cols);
  const bool biased = a.bias.data != nullptr;
  const int packs = y.packs(), cols = static_cast<int>(a.cols);
  float sum = 0, squares = 0;
  each_pack<kThreads>(
      packs, me.thread, [&](int k, int) { sum += sum_of(x.held[k]); },
      [&](int pack) { sum += sum_of(x.row.load(pack)); });
  const float mean = group_reduce<kThreads>(sum, Add{}) / static_cast<float>(a.cols);
  each_pack<kThreads>(
      packs, me.thread,
      [&](int k, int pack) { squares += squares_of(x.held[k], mean, cols - pack * kCount); },
      [&](int pack) { squares += squares_of(x.row.load(pack), mean, cols - pack * kCount); });
  squares = group_reduce<kThreads>(squares, Add{});
  const float rstd = 1.0f / sqrtf(squares / static_cast<float>(a.cols) + a.eps);
  if (me.thread == 0) {
    static_cast<float*>(a.mean.data)[me.row] = mean;
    static_cast<float*>(a.rstd.data)[me.row] = rstd;
  }
  const auto result = [&](int pack, const Pack<T>& v) {
    const Pack<T> wv = w.load(pack);
    const Pack<T> bv = biased ? bias.load(pack) : pack_of<T>([](int) { return 0.0f; });
    y.store(pack, pack_of<T>([&](int k) { return fmaf((v[k] - mean) * rstd, wv[k], bv[k]); }));
  };
  each_pack<kThreads>(
      packs, me.thread, [&](int k, int pack) { result(pack, x.held[k]); },
      [&](int pack) { result(pack, x.row.load(pack)); });
}

/// Adds to the row's sums of g = dy * w and of g * xhat. Behind the row's end dy is 0.
template <class T>
__device__ void add_sums(const Pack<T>& dy, const Pack<T>& w, const Pack<T>& x, float mean, float rstd,
                         float& sum, float& dot) {
#pragma unroll
  for (int k = 0; k < Pack<T>::kCount; ++k) {
    const float g = dy[k] * w[k];
    sum += g;
    dot = fmaf(g, (x[k] - mean) * rstd, dot);
  }
}

/// What a row's gradient is made of: its moments, and the means of g and of g * xhat.
struct RowOf {
  float mean, rstd, mean_g, mean_dot;
};

/// dx; adds the row's share of dw.
template <class T>
__device__ Pack<T> gradient(const Pack<T>& dy, const Pack<T>& w, const Pack<T>& x, const RowOf& of,
                            float (&dw)[Pack<T>::kCount]) {
  return pack_of<T>([&](int k) {
    const float xhat = (x[k] - of.mean) * of.rstd;
    dw[k] = fmaf(dy[k], xhat, dw[k]);
    return of.rstd * (fmaf(dy[k], w[k], -of.mean_g) - xhat * of.mean_dot);
  });
}

/// Group p takes rows p, p + parts, ... and leaves their sum for dw in row p of `sums` [parts, cols].
template <class T, int kThreads, bool kAligned>
__global__ void __launch_bounds__(kBlockThreads<kThreads>)
    layer_norm_backward_rows(LayerNormArgs a, float* sums, int64_t parts) {
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
    RowOf of{static_cast<const float*>(a.mean.data)[row], static_cast<const float*>(a.rstd.data)[row], 0, 0};
    float g = 0, dot = 0;
    each_pack<kThreads>(
        packs, me.thread,
        [&](int k, int pack) { add_sums(dy.held[k], w.load(pack), x.held[k], of.mean, of.rstd, g, dot); },
        [&](int pack) {
          add_sums(dy.row.load(pack), w.load(pack), x.row.load(pack), of.mean, of.rstd, g, dot);
        });
    of.mean_g = group_reduce<kThreads>(g, Add{}) / static_cast<float>(a.cols);
    of.mean_dot = group_reduce<kThreads>(dot, Add{}) / static_cast<float>(a.cols);
    each_pack<kThreads>(
        packs, me.thread,
        [&](int k, int pack) { dx.store(pack, gradient(dy.held[k], w.load(pack), x.held[k], of, sum[k])); },
        [&](int pack) {
          float dw[kCount];
#pragma unroll
          for (int k = 0; k < kCount; ++k)
            dw[k] = row == me.row || pack * kCount + k >= a.cols ? 0 : mine[pack * kCount + k];
          // dx may be dy or x: all of a pack is read before it is written.
          dx.store(pack, gradient(dy.row.load(pack), w.load(pack), x.row.load(pack), of, dw));
          keep(pack, dw);
        });
  }
  each_pack<kThreads>(
      packs, me.thread, [&](int k, int pack) { keep(pack, sum[k]); }, [](int) {});
}

}  // namespace

void layer_norm_forward(ExecutionContext& context, const LayerNormArgs& a) {
  with_f32_bf16(a.x.dtype, [&](auto type) {
    using T = decltype(type);
    with_form<T>(a.cols, {a.x.data, a.w.data, a.bias.data, a.y.data}, [&](auto threads, auto aligned) {
      launch(context, "layer_norm_forward", layer_norm_rows<T, threads(), aligned()>,
             grid_of_rows<threads()>(a.rows), a);
    });
  });
}

void layer_norm_backward(ExecutionContext& context, const LayerNormArgs& a) {
  if (a.rows == 0 || a.cols == 0) return;
  with_f32_bf16(a.x.dtype, [&](auto type) {
    using T = decltype(type);
    with_form<T>(a.cols, {a.x.data, a.w.data, a.dy.data, a.dx.data}, [&](auto threads, auto aligned) {
      add_row_sums<threads()>(context, "layer_norm_backward", a.dw.as<float>(), a.rows, a.cols,
                              [&](const Grid& grid, float* sums, int64_t parts) {
                                launch(context, "layer_norm_backward",
                                       layer_norm_backward_rows<T, threads(), aligned()>, grid, a, sums,
                                       parts);
                              });
    });
  });
}

}  // namespace sherd::cuda
