// Normalisation of rows. ops.h says what holds for all operations.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd {

/// y = x * rstd * w per row, rstd = 1/sqrt(mean(x^2) + eps). x, y, dy, dx [rows, cols]; w [cols]; rstd f32
/// [rows]; dw f32 [cols].
struct RmsNormArgs {
  int64_t rows = 0, cols = 0;
  float eps = 0;
  Ref x{}, w{}, y{};
  Ref rstd{};
  Ref dy{}, dx{};  // backward
  Ref dw{};        // backward, adds over rows in increasing order
  Ref addend{};  // backward, [rows, cols] or null: dx = addend + the gradient, which is rounded to x's dtype first
  Ref sums{};  // [rows] of rstd's dtype, or null: of x^2, in backward of dy * w * x, over the `of` columns of whole rows
  int64_t of = 0;

  int64_t columns() const { return sums.data ? of : cols; }
};

/// y = (x - mean) * rstd * w + bias per row, with the row's mean and rstd = 1/sqrt(mean((x - mean)^2) + eps); bias may
/// be null (none). Shapes and dtypes as above; mean f32 [rows]. Backward: with xhat = (x - mean) * rstd and g = dy * w,
/// dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), which may be dy, and dw adds dy * xhat. The bias' gradient is
/// bias_backward()'s.
struct LayerNormArgs {
  int64_t rows = 0, cols = 0;
  float eps = 0;
  Ref x{}, w{}, bias{}, y{};
  Ref mean{}, rstd{};
  Ref dy{}, dx{};  // backward
  Ref dw{};        // backward, adds over rows in increasing order
  Ref addend{};    // backward, as above
};

inline Work work_of(const Device&, const RmsNormArgs& a) {
  return {.bytes = bytes_of({a.x, a.y, a.dy, a.dx, a.addend}, a.rows * a.cols), .width = a.cols};
}
inline Work work_of(const Device&, const LayerNormArgs& a) {
  return {.bytes = bytes_of({a.x, a.y, a.dy, a.dx, a.addend}, a.rows * a.cols), .width = a.cols};
}

struct NormKernels {
  static constexpr const char* kName = "norm";
  static const NormKernels* reference();
  static const NormKernels* cpu();
  static const NormKernels* cuda();

  void (*rms_norm_forward)(ExecutionContext&, const RmsNormArgs&);
  void (*rms_norm_backward)(ExecutionContext&, const RmsNormArgs&);
  void (*rms_norm_sums)(ExecutionContext&, const RmsNormArgs&);
  void (*layer_norm_forward)(ExecutionContext&, const LayerNormArgs&);
  void (*layer_norm_backward)(ExecutionContext&, const LayerNormArgs&);
};

namespace ops {

/// Rows of which x has a part of the columns. Undefined sums: x has whole rows.
struct WholeRows {
  Tensor sums{};     // [rows] of rstd's dtype: rms_norm_sums() of all parts, added up
  int64_t cols = 0;  // of all parts together
};

void rms_norm_forward(Stream& s, const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& w,
                      float eps, const WholeRows& whole = {});
/// dw adds; rstd is forward's. `addend` (may be undefined) is added to dx, which may be its memory, as ops::add() does.
void rms_norm_backward(Stream& s, const Tensor& dx, const Tensor& dw, const Tensor& dy, const Tensor& x,
                       const Tensor& w, const Tensor& rstd, const Tensor& addend = {},
                       const WholeRows& whole = {});
/// sums[r] = the sum over x's columns of x^2, as forward needs it; with dy and w of dy * w * x, as backward does.
void rms_norm_sums(Stream& s, const Tensor& sums, const Tensor& x, const Tensor& dy = {},
                   const Tensor& w = {});

/// bias may be undefined (none).
void layer_norm_forward(Stream& s, const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                        const Tensor& w, const Tensor& bias, float eps);
/// dw adds; mean and rstd are forward's; addend as above.
void layer_norm_backward(Stream& s, const Tensor& dx, const Tensor& dw, const Tensor& dy, const Tensor& x,
                         const Tensor& w, const Tensor& mean, const Tensor& rstd, const Tensor& addend = {});

}  // namespace ops
}  // namespace sherd
