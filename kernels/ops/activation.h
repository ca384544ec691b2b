// Activation functions and biases of rows. ops.h says what holds for all operations.
#pragma once

#include <sherd/kernels/device/tensor.h>

namespace sherd::ops {

/// y = gelu(x) = 0.5x(1+tanh(sqrt(2/pi)(x+0.044715x^3))).
void gelu_forward(Stream& s, const Tensor& y, const Tensor& x);
/// dx = dy * gelu'(x); dx may be dy.
void gelu_backward(Stream& s, const Tensor& dx, const Tensor& dy, const Tensor& x);

/// y[r][c] += bias[c], one dtype; y [rows, cols], bias [cols].
void add_bias(Stream& s, const Tensor& y, const Tensor& bias);
/// dbias[c] += sum over rows of dy[r][c], in increasing order; dbias f32 [cols].
void bias_backward(Stream& s, const Tensor& dbias, const Tensor& dy);

}  // namespace sherd::ops
