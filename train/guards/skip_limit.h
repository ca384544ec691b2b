// Limit on consecutive skipped steps.
#pragma once

#include <cstdint>
#include <string>

namespace sherd {

/// Counts steps whose update was left out on all ranks because their gradients were not finite
/// (OptimizerOptions::skip_non_finite), in a row. Fed with figures that are the same on all ranks, it says
/// the same on all, so that they end together. Its message names the flags --max-skipped-steps and --lr.
class SkipLimit {
 public:
  /// @param most in a row end the run; 0: as many as there are.
  explicit SkipLimit(int64_t most) : most_(most) {}

  /// `step` is done, steps in their order; `skipped_steps` of this run were skipped up to it.
  /// @returns whether it was skipped itself.
  bool count(int64_t step, int64_t skipped_steps);
  /// Steps skipped since the last one that was not.
  int64_t in_a_row() const { return in_a_row_; }
  /// Whether the next step can be the last that is allowed to be skipped: no step may be issued after it
  /// before it is counted.
  bool next_is_the_last() const { return most_ > 0 && in_a_row_ + 1 >= most_; }
  /// Why no step may follow those counted; empty while one may.
  std::string reached() const;

 private:
  int64_t most_;
  int64_t step_ = 0, skipped_ = 0, in_a_row_ = 0;
};

}  // namespace sherd
