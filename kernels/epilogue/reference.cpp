#include <sherd/kernels/epilogue/epilogue.h>

#include <cmath>
#include <numbers>

#include <sherd/kernels/device/reference/access.h>

namespace sherd::reference {
namespace {

const double kRoot = std::sqrt(2 / std::numbers::pi);

double tanh_argument(double x) { return kRoot * (x + 0.044715 * x * x * x); }

void gelu_forward(ExecutionContext&, Ref y, Ref x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const double v = get(x, i);
    put(y, i, 0.5 * v * (1 + std::tanh(tanh_argument(v))));
  }
}

void gelu_backward(ExecutionContext&, Ref dx, Ref dy, Ref x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const double v = get(x, i);
    const double t = std::tanh(tanh_argument(v));
    const double slope = kRoot * (1 + 3 * 0.044715 * v * v);
    put(dx, i, get(dy, i) * (0.5 * (1 + t) + 0.5 * v * (1 - t * t) * slope));
  }
}

void add_bias(ExecutionContext&, Ref y, Ref bias, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows * cols; ++i) put(y, i, get(y, i) + get(bias, i % cols));
}

void bias_backward(ExecutionContext&, Ref dbias, Ref dy, int64_t rows, int64_t cols) {
  for (int64_t c = 0; c < cols; ++c) {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) sum += get(dy, r * cols + c);
    accumulate(dbias, c, sum);
  }
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const EpilogueKernels* EpilogueKernels::reference() {
  static constexpr EpilogueKernels table{
      .gelu_forward = reference::gelu_forward,
      .gelu_backward = reference::gelu_backward,
      .add_bias = reference::add_bias,
      .bias_backward = reference::bias_backward,
  };
  return &table;
}

}  // namespace sherd
