#include <sherd/nn/kernels/loss/loss.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <sherd/kernels/device/reference/access.h>

namespace sherd::reference {
namespace {

double log_sum_exp(Ref x, int64_t begin, int64_t count) {
  double max = -std::numeric_limits<double>::infinity();
  for (int64_t j = 0; j < count; ++j) max = std::max(max, get(x, begin + j));
  double sum = 0;
  for (int64_t j = 0; j < count; ++j) sum += std::exp(get(x, begin + j) - max);
  return max + std::log(sum);
}

void cross_entropy_forward(ExecutionContext&, const CrossEntropyArgs& a) {
  for (int64_t i = 0; i < a.rows; ++i) {
    const int64_t row = i * a.ld;
    const bool ignored = a.targets[i] == kIgnoredTarget;
    put(a.losses, i, ignored ? 0 : log_sum_exp(a.logits, row, a.vocab) - get(a.logits, row + a.targets[i]));
  }
}

void cross_entropy_backward(ExecutionContext&, const CrossEntropyArgs& a) {
  for (int64_t i = 0; i < a.rows; ++i) {
    const int64_t row = i * a.ld;
    const double lse = log_sum_exp(a.logits, row, a.vocab);
    const bool ignored = a.targets[i] == kIgnoredTarget;
    const double scale = a.scale * (a.scales.data != nullptr ? get(a.scales, i) : 1);
    for (int64_t j = 0; j < a.vocab; ++j) {
      const double p = std::exp(get(a.logits, row + j) - lse);
      put(a.dlogits, row + j, ignored ? 0 : (p - (j == a.targets[i] ? 1 : 0)) * scale);
    }
  }
}

void cross_entropy_forward_backward(ExecutionContext& ctx, const CrossEntropyArgs& a) {
  cross_entropy_forward(ctx, a);
  cross_entropy_backward(ctx, a);
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const LossKernels* LossKernels::reference() {
  static constexpr LossKernels table{
      .cross_entropy_forward = reference::cross_entropy_forward,
      .cross_entropy_backward = reference::cross_entropy_backward,
      .cross_entropy_forward_backward = reference::cross_entropy_forward_backward,
  };
  return &table;
}

}  // namespace sherd
