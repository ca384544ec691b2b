// Logits and their gradient, for the functions that end in a cross-entropy.
#pragma once

#include <sherd/kernels/device/columns.h>
#include <sherd/kernels/device/stream.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd::nn::detail {

/// The weights of a head, a row for each logit.
class HeadWeights {
 public:
  /// A GPU's fast products want a multiple of 8 logits. Where w, in 16 bits, has another number of rows (GPT-2 has 50257),
  /// this is a copy with zeros behind them.
  HeadWeights(Stream& s, const Tensor& w);

  /// x w^T, of which the columns behind the logits are zeros.
  ops::Columns logits(Stream& s, const Tensor& x) const;
  /// dw = beta dw + dlogits^T x, where dw is defined, and dx = dlogits w, where dx is. dlogits are stored
  /// where logits() left the logits.
  void backward(Stream& s, const ops::Columns& dlogits, const Tensor& x, const Tensor& dw, float beta,
                const Tensor& dx) const;

 private:
  Tensor w_;
  int64_t logits_;
};

}  // namespace sherd::nn::detail
