// Progress of a run while it goes on.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <ostream>

#include "report.h"

namespace train_gpt {

/// A one-line bar that is redrawn on a terminal, plain lines (the first and the last step, every evaluation,
/// and about 20 in between) elsewhere, or nothing.
class Progress {
 public:
  enum class Mode { bar, lines, off };

  /// For stdout as it is: a terminal or not.
  /// `first` steps were done before this run.
  static Progress on_stdout(bool quiet, int64_t steps, int64_t first = 0);
  /// `columns` is the width that a bar may take. `out` must outlive this.
  Progress(std::ostream& out, Mode mode, int64_t steps, int columns, int64_t first = 0);
  /// Ends the bar's line, so that what is printed next (a summary, an error) starts on its own.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void step(const StepResult& result);
  /// A line of its own, above the bar.
  void note(const std::string& line);
  /// Training time so far.
  double seconds() const;

 private:
  using Clock = std::chrono::steady_clock;

  bool is_line_due(const StepResult& result) const;
  bool is_redraw_due(const StepResult& result) const;
  std::string describe(const StepResult& result) const;
  std::string draw_bar(const StepResult& result) const;

  std::ostream& out_;
  Mode mode_;
  int64_t steps_;
  int columns_;
  int64_t first_;
  Clock::time_point start_ = Clock::now();
  std::optional<Clock::time_point> drawn_;
  std::optional<double> eval_loss_;
};

}  // namespace train_gpt
