// Softmax over rows. ops.h says what holds for all operations.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd {

/// y = exp(x - logsumexp(x)) for each row of x and y [rows, cols].
/// Backward, of y: dx = y * (dy - sum(y * dy)) for each row; dx may be dy.
struct SoftmaxArgs {
  int64_t rows = 0, cols = 0;
  Ref x{}, y{};
  Ref dy{}, dx{};  // backward
};

inline Work work_of(const Device&, const SoftmaxArgs& a) {
  return {.bytes = bytes_of({a.x, a.y, a.dy, a.dx}, a.rows * a.cols)};
}

struct SoftmaxKernels {
  static constexpr const char* kName = "softmax";
  static const SoftmaxKernels* reference();
  static const SoftmaxKernels* cpu();
  static const SoftmaxKernels* cuda();

  void (*softmax_forward)(ExecutionContext&, const SoftmaxArgs&);
  void (*softmax_backward)(ExecutionContext&, const SoftmaxArgs&);
};

namespace ops {

/// Over the last dimension of tensors of one shape and dtype, of one dimension or more; y may be x.
void softmax_forward(Stream& s, const Tensor& y, const Tensor& x);
/// y is forward's.
void softmax_backward(Stream& s, const Tensor& dx, const Tensor& dy, const Tensor& y);

}  // namespace ops
}  // namespace sherd
