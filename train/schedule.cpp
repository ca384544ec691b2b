#include <sherd/train/schedule.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sherd {

double learning_rate(const Schedule& s, int64_t step) {
  if (step < s.warmup) return s.lr * static_cast<double>(step + 1) / static_cast<double>(s.warmup);
  if (s.decay == RateDecay::constant || s.steps <= s.warmup) return s.lr;
  const double progress =
      static_cast<double>(std::min(step, s.steps) - s.warmup) / static_cast<double>(s.steps - s.warmup);
  return s.lr * (0.1 + 0.9 * 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
}

}  // namespace sherd
