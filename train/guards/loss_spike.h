// Detection of loss spikes: steps whose loss is far above that of the steps before.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace sherd {

/// A step whose loss is a spike, and the values that it was compared with.
struct LossSpike {
  double loss = 0, median = 0, deviation = 0;
  /// (loss - median) / deviation.
  double deviations = 0;
};

/// Robust detector over the losses of the latest W finite steps before the current one:
///
///     median    = median of the window
///     deviation = max(1.4826 * median of |loss - median|, 0.005 * |median|)
///     a spike:  loss - median > K * deviation
///
/// 1.4826 makes the median absolute deviation that of a normal distribution, so K counts standard deviations
/// where the losses are normal; neither figure is moved by spikes as long as they are fewer than half of the
/// window. The second term keeps a run whose losses hardly differ (memorized data) from reporting noise. Only
/// jumps upwards count. Every finite loss enters the window, spikes too: after W / 2 steps on a new level
/// that level is the normal one. Nothing is judged before kLeast losses are there. A non-finite loss is
/// neither judged nor entered into the window (skipped steps report those).
///
/// Pure arithmetic: the same losses give the same result on every rank. One thread.
class LossSpikeDetector {
 public:
  static constexpr size_t kWindow = 128, kLeast = 32;
  /// Lower bound of the deviation, relative to the median.
  static constexpr double kLeastDeviation = 0.005;

  /// @param deviations K; 0: disabled.
  /// @throws InvalidArgument for K that is negative or NaN, or a window of less than kLeast.
  explicit LossSpikeDetector(double deviations, size_t window = kWindow);

  /// Compares the loss with the window, then adds it. Also for losses of steps before a resume.
  std::optional<LossSpike> add(double loss);

 private:
  double deviations_;
  size_t window_;
  std::deque<double> losses_;
};

/// Returns the line about it: "step 812: the loss 9.120000 is 21.4 deviations above 3.301000, the median of
/// the steps before it (grad_norm 12.25; sequences 12976 to 12991)".
/// @param first, count which sequences of the run's data the step took, from 0.
std::string describe(const LossSpike& spike, int64_t step, double grad_norm, int64_t first, int64_t count);

}  // namespace sherd
