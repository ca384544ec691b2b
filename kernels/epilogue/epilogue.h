// Biases of rows and GELU, which may follow a product in the same kernel. ops.h says what holds for all
// operations.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd {

struct EpilogueKernels {
  static constexpr const char* kName = "epilogue";
  static const EpilogueKernels* reference();
  static const EpilogueKernels* cpu();
  static const EpilogueKernels* cuda();

  void (*gelu_forward)(ExecutionContext&, Ref y, Ref x, int64_t count);
  void (*gelu_backward)(ExecutionContext&, Ref dx, Ref dy, Ref x, int64_t count);
  void (*add_bias)(ExecutionContext&, Ref y, Ref bias, int64_t rows, int64_t cols);
  void (*bias_backward)(ExecutionContext&, Ref dbias, Ref dy, int64_t rows, int64_t cols);
};

namespace ops {

/// y = gelu(x) = 0.5x(1+tanh(sqrt(2/pi)(x+0.044715x^3))).
void gelu_forward(Stream& s, const Tensor& y, const Tensor& x);
/// dx = dy * gelu'(x); dx may be dy.
void gelu_backward(Stream& s, const Tensor& dx, const Tensor& dy, const Tensor& x);

/// y[r][c] += bias[c], one dtype; y [rows, cols], bias [cols].
void add_bias(Stream& s, const Tensor& y, const Tensor& bias);
/// dbias[c] += sum over rows of dy[r][c], in increasing order; dbias f32 [cols].
void bias_backward(Stream& s, const Tensor& dbias, const Tensor& dy);

}  // namespace ops
}  // namespace sherd
