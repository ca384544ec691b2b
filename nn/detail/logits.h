// Logits and their gradient, for the functions that end in a cross-entropy.
#pragma once

#include <sherd/fsdp/parameter.h>
#include <sherd/kernels/device/columns.h>
#include <sherd/nn/detail/memory.h>

namespace sherd::nn::detail {

/// x w^T: one column for each row of w. Rows begin at multiples of 16 bytes, which GPUs' products and vector loads need:
/// where w has an odd number of rows, in a matrix whose rows have a multiple of 64 elements.
ops::Columns logits_of(Stream& s, const Tensor& x, const Tensor& w);
/// dw = beta dw + dlogits^T x, where dw is defined, and dx = dlogits w, where dx is.
void logits_backward(Stream& s, const ops::Columns& dlogits, const Tensor& x, const Tensor& w,
                     const Tensor& dw, float beta, const Tensor& dx);

}  // namespace sherd::nn::detail
