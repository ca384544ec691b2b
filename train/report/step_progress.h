// Progress of a running training run.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>

#include <sherd/train/report/progress_line.h>
#include <sherd/train/report/step_result.h>

namespace sherd {

/// A one-line bar, redrawn on a terminal; plain lines elsewhere (the first and the last step, every
/// evaluation, and about 20 in between); or nothing.
class StepProgress {
 public:
  using Mode = ProgressLine::Mode;

  /// Makes it for stdout, a terminal or not. `first`: steps done before this run.
  [[nodiscard]] static StepProgress on_stdout(bool quiet, int64_t steps, int64_t first = 0);
  /// `columns` returns the width that a bar may take now: a terminal's changes. `out` must outlive this.
  StepProgress(std::ostream& out, Mode mode, int64_t steps, std::function<int()> columns, int64_t first = 0);
  /// Ends the bar's line, so that later output (a summary, an error) starts on a new line.
  ~StepProgress();
  StepProgress(const StepProgress&) = delete;
  StepProgress& operator=(const StepProgress&) = delete;

  void step(const StepResult& result);
  /// Writes a line of its own, above the bar.
  void note(const std::string& line) { line_.line(line); }
  /// Training time so far.
  double seconds() const;

 private:
  using Clock = std::chrono::steady_clock;

  bool is_line_due(const StepResult& result) const;
  bool is_redraw_due(const StepResult& result) const;
  std::string describe(const StepResult& result) const;

  ProgressLine line_;
  int64_t steps_;
  std::function<int()> columns_;
  int64_t first_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point drawn_;  // time of the last drawing
  std::optional<double> eval_loss_;
};

}  // namespace sherd
