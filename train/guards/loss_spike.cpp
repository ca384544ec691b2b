#include <sherd/train/guards/loss_spike.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include <sherd/base/error.h>

namespace sherd {
namespace {

// For an even count, returns the mean of the two middle values.
double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace

LossSpikeDetector::LossSpikeDetector(double deviations, size_t window)
    : deviations_(deviations), window_(window) {
  if (!(deviations >= 0) || window < kLeast)
    throw InvalidArgument(fmt::format(
        "LossSpikeDetector: {} deviations over a window of {} steps; the first must not be negative, the "
        "second at least {}",
        deviations, window, kLeast));
}

std::optional<LossSpike> LossSpikeDetector::add(double loss) {
  if (deviations_ == 0 || !std::isfinite(loss)) return std::nullopt;
  std::optional<LossSpike> found;
  if (losses_.size() >= kLeast) {
    LossSpike s{.loss = loss};
    std::vector<double> values(losses_.begin(), losses_.end());
    s.median = median_of(values);
    for (double& v : values) v = std::abs(v - s.median);
    s.deviation = std::max(1.4826 * median_of(std::move(values)), kLeastDeviation * std::abs(s.median));
    s.deviations = s.deviation > 0 ? (loss - s.median) / s.deviation : 0;
    if (s.deviations > deviations_) found = s;
  }
  losses_.push_back(loss);
  if (losses_.size() > window_) losses_.pop_front();
  return found;
}

std::string describe(const LossSpike& spike, int64_t step, double grad_norm, int64_t first, int64_t count) {
  return fmt::format(
      "step {}: the loss {:.6f} is {:.1f} deviations above {:.6f}, the median of the steps before it "
      "(grad_norm {:.4g}; "
      "sequences {} to {})",
      step, spike.loss, spike.deviations, spike.median, grad_norm, first, first + count - 1);
}

}  // namespace sherd
