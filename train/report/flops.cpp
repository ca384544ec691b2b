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
  const auto number = [](int64_t n) { return static_cast<double>(n); };
  const double attention = 3 * number(work.attention_width) - 2 * number(work.attention_ahead),
               in_windows = 3 * number(work.window_width) - 2 * number(work.window_ahead);
  return 6 * number(work.weights) - 2 * number(work.frozen) - 2 * number(work.ahead) +
         2 * number(seq + 1) * attention +
         (work.window_width > 0 ? 4 * mean_keys(work.window, seq) * in_windows : 0);
}

}  // namespace sherd
