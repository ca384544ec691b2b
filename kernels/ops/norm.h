// Normalisation of rows. ops.h says what holds for all operations.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/tensor.h>
#include <sherd/kernels/ops/ref.h>

namespace sherd {

/// y = x * rstd * w per row, rstd = 1/sqrt(mean(x^2) + eps). x, y, dy, dx [rows, cols]; w [cols]; rstd f32
/// [rows]; dw f32 [cols].
struct RmsNormArgs {
  int64_t rows = 0, cols = 0;
  float eps = 0;
  Ref x{}, w{}, y{};
  float* rstd = nullptr;
  Ref dy{}, dx{};       // backward
  float* dw = nullptr;  // backward, adds over rows in increasing order
};

namespace ops {

void rms_norm_forward(Stream& s, const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& w,
                      float eps);
/// dw adds; rstd is forward's.
void rms_norm_backward(Stream& s, const Tensor& dx, const Tensor& dw, const Tensor& dy, const Tensor& x,
                       const Tensor& w, const Tensor& rstd);

}  // namespace ops
}  // namespace sherd
