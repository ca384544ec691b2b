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

/// Sums (x - mean)^2 over the first `count` elements: a row's last pack is filled up with zeros, which do not
/// count.
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

/// A row of the backward: its moments, and the sums, then the means, of g = dy * w and of g * xhat.
struct LayerRow {
  float mean, rstd, g = 0, dot = 0;

  __device__ LayerRow(const LayerNormArgs& a, int64_t row)
      : mean(static_cast<const float*>(a.mean.data)[row]),
        rstd(static_cast<const float*>(a.rstd.data)[row]) {}

  /// Behind the row's end dy is 0.
  template <class T>
  __device__ void add(const Pack<T>& dy, const Pack<T>& w, const Pack<T>& x) {
#pragma unroll
    for (int k = 0; k < Pack<T>::kCount; ++k) {
      const float gk = dy[k] * w[k];
      g += gk;
      dot = fmaf(gk, (x[k] - mean) * rstd, dot);
    }
  }

  template <int kThreads>
  __device__ void reduce(int64_t cols) {
    g = group_reduce<kThreads>(g, Add{}) / static_cast<float>(cols);
    dot = group_reduce<kThreads>(dot, Add{}) / static_cast<float>(cols);
  }

  template <class T>
  __device__ Pack<T> gradient(const Pack<T>& dy, const Pack<T>& w, const Pack<T>& x,
                              float (&dw)[Pack<T>::kCount]) const {
    return pack_of<T>([&](int k) {
      const float xhat = (x[k] - mean) * rstd;
      dw[k] = fmaf(dy[k], xhat, dw[k]);
      return rstd * (fmaf(dy[k], w[k], -g) - xhat * dot);
    });
  }
};

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
  norm_backward<LayerRow>(context, "layer_norm_backward", a);
}

}  // namespace sherd::cuda
