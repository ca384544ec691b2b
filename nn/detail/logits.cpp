#include <sherd/nn/detail/logits.h>

#include <sherd/kernels/gemm/gemm.h>

namespace sherd::nn::detail {

ops::Columns logits_of(Stream& s, const Tensor& x, const Tensor& w) {
  constexpr int64_t kBytes = 16, kWhole = 64;
  const int64_t columns = w.size(0);
  const bool odd = columns * size_of(x.dtype()) % kBytes != 0;
  const ops::Columns y(like(x, {x.size(0), odd ? (columns + kWhole - 1) / kWhole * kWhole : columns}), 0,
                       columns);
  ops::gemm_columns(s, y, x, false, w, true);
  return y;
}

void logits_backward(Stream& s, const ops::Columns& dlogits, const Tensor& x, const Tensor& w,
                     const Tensor& dw, float beta, const Tensor& dx) {
  if (dw.defined()) ops::gemm_columns(s, dw, dlogits, true, x, false, beta);
  if (dx.defined()) ops::gemm_columns(s, dx, dlogits, false, w, false);
}

}  // namespace sherd::nn::detail
