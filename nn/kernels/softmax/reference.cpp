#include <sherd/nn/kernels/softmax/softmax.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <sherd/kernels/device/reference/access.h>

namespace sherd::reference {
namespace {

void softmax_forward(ExecutionContext&, const SoftmaxArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const int64_t row = r * a.cols;
    double max = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t c = 0; c < a.cols; ++c) max = std::max(max, get(a.x, row + c));
    for (int64_t c = 0; c < a.cols; ++c) sum += std::exp(get(a.x, row + c) - max);
    for (int64_t c = 0; c < a.cols; ++c) put(a.y, row + c, std::exp(get(a.x, row + c) - max) / sum);
  }
}

void softmax_backward(ExecutionContext&, const SoftmaxArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const int64_t row = r * a.cols;
    double dot = 0;
    for (int64_t c = 0; c < a.cols; ++c) dot += get(a.y, row + c) * get(a.dy, row + c);
    for (int64_t c = 0; c < a.cols; ++c) put(a.dx, row + c, get(a.y, row + c) * (get(a.dy, row + c) - dot));
  }
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const SoftmaxKernels* SoftmaxKernels::reference() {
  static constexpr SoftmaxKernels table{
      .softmax_forward = reference::softmax_forward,
      .softmax_backward = reference::softmax_backward,
  };
  return &table;
}

}  // namespace sherd
