// Limit on consecutive skipped steps.
#pragma once

#include <cstdint>
#include <string>

namespace sherd {

/// Counts consecutive steps whose update was skipped on all ranks because their gradients were not finite
/// (OptimizerOptions::skip_non_finite). Its inputs are the same on all ranks, and so are its results, so that
/// all ranks end together. Its message names the flags --max-skipped-steps and --lr.
class SkipLimit {
 public:
  /// @param most consecutive skipped steps that end the run; 0: unlimited.
  explicit SkipLimit(int64_t most) : most_(most) {}

  /// Counts the end of `step`; called in the order of steps. `skipped_steps`: of this run up to it.
  /// @returns whether `step` was skipped.
  [[nodiscard]] bool count(int64_t step, int64_t skipped_steps);
  /// Returns the number of consecutive skipped steps up to now.
  int64_t in_a_row() const { return in_a_row_; }
  /// Returns whether the next step can reach the limit: it must be counted before another step is issued.
  bool next_is_the_last() const { return most_ > 0 && in_a_row_ + 1 >= most_; }
  /// Returns why training must end after the counted steps; empty while it may continue.
  std::string reached() const;

 private:
  int64_t most_;
  int64_t step_ = 0, skipped_ = 0, in_a_row_ = 0;
};

}  // namespace sherd
