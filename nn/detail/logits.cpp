#include <sherd/nn/detail/logits.h>

#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/kernels/gemm/gemm.h>
#include <sherd/nn/detail/memory.h>

namespace sherd::nn::detail {

HeadWeights::HeadWeights(Stream& s, const Tensor& w) : w_(w), logits_(w.size(0)) {
  constexpr int64_t kFast = 8, kWhole = 64;
  Device& device = s.device();
  const bool gpu = device.kind() == DeviceKind::cuda || (device.dry() && device.total_memory() > 0);
  if (!gpu || size_of(w.dtype()) != 2 || logits_ % kFast == 0) return;
  w_ = like(w, {(logits_ + kWhole - 1) / kWhole * kWhole, w.size(1)});
  ops::copy(s, w_.rows(0, logits_), w);
  ops::fill(s, w_.rows(logits_, w_.size(0)), 0);
}

ops::Columns HeadWeights::logits(Stream& s, const Tensor& x) const {
  const Tensor y = like(x, {x.size(0), w_.size(0)});
  ops::gemm(s, y, x, false, w_, true);
  return {y, 0, logits_};
}

void HeadWeights::backward(Stream& s, const ops::Columns& dlogits, const Tensor& x, const Tensor& dw,
                           float beta, const Tensor& dx) const {
  if (dw.defined()) ops::gemm_columns(s, dw, dlogits, true, x, false, beta);
  if (dx.defined()) ops::gemm(s, dx, dlogits.matrix, false, w_, false);
}

}  // namespace sherd::nn::detail
