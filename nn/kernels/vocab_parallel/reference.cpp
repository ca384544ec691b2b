#include <sherd/nn/kernels/vocab_parallel/vocab_parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <sherd/kernels/device/reference/access.h>

namespace sherd::reference {
namespace {

void vocab_parallel_partial(ExecutionContext&, const VocabParallelArgs& a) {
  for (int64_t i = 0; i < a.rows; ++i) {
    const int64_t row = i * a.ld, target = a.targets[i] - a.begin;
    double max = -std::numeric_limits<double>::infinity();
    for (int64_t j = 0; j < a.cols; ++j) max = std::max(max, get(a.logits, row + j));
    double sum = 0;
    for (int64_t j = 0; j < a.cols; ++j) sum += std::exp(get(a.logits, row + j) - max);
    float* stats = a.stats + 3 * i;
    stats[0] = static_cast<float>(max);
    stats[1] = static_cast<float>(sum);
    stats[2] = target >= 0 && target < a.cols ? static_cast<float>(get(a.logits, row + target)) : 0.0f;
  }
}

void vocab_parallel_combine(ExecutionContext&, const VocabParallelArgs& a) {
  for (int64_t i = 0; i < a.rows; ++i) {
    const auto stat = [&](int64_t part, int64_t k) { return double{a.stats[(part * a.rows + i) * 3 + k]}; };
    double max = -std::numeric_limits<double>::infinity();
    for (int64_t p = 0; p < a.parts; ++p) max = std::max(max, stat(p, 0));
    double sum = 0, target = 0;
    for (int64_t p = 0; p < a.parts; ++p) {
      sum += stat(p, 1) * std::exp(stat(p, 0) - max);
      target += stat(p, 2);
    }
    const bool ignored = a.targets[i] == kIgnoredTarget;
    a.lse[i] = ignored ? std::numeric_limits<float>::infinity() : static_cast<float>(max + std::log(sum));
    a.losses[i] = ignored ? 0.0f : static_cast<float>(max - target + std::log(sum));
  }
}

void vocab_parallel_backward(ExecutionContext&, const VocabParallelArgs& a) {
  for (int64_t i = 0; i < a.rows; ++i) {
    const int64_t row = i * a.ld, target = a.targets[i] - a.begin;
    for (int64_t j = 0; j < a.cols; ++j) {
      const double p = std::exp(get(a.logits, row + j) - double{a.lse[i]});
      put(a.dlogits, row + j, (p - (j == target ? 1 : 0)) * a.scale);
    }
  }
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const VocabParallelKernels* VocabParallelKernels::reference() {
  static constexpr VocabParallelKernels table{
      .vocab_parallel_partial = reference::vocab_parallel_partial,
      .vocab_parallel_combine = reference::vocab_parallel_combine,
      .vocab_parallel_backward = reference::vocab_parallel_backward,
  };
  return &table;
}

}  // namespace sherd
