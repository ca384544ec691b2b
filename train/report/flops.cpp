#include <sherd/train/report/flops.h>

#include <algorithm>

namespace sherd {
namespace {

// Keys that a token sees, the mean over a sequence.
double mean_keys(int64_t window, int64_t seq) {
  const auto most = static_cast<double>(std::min(window, seq)), all = static_cast<double>(seq);
  return (most * (most + 1) / 2 + (all - most) * most) / all;
}

}  // namespace

double training_flops(const TokenWork& work, int64_t seq) {
  return 6.0 * static_cast<double>(work.weights) +
         6.0 * static_cast<double>(seq + 1) * static_cast<double>(work.attention_width) +
         (work.window_width > 0 ? 12.0 * mean_keys(work.window, seq) * static_cast<double>(work.window_width)
                                : 0);
}

}  // namespace sherd
