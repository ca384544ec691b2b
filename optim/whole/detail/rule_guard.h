// Errors of a rule: exceptions of its calls, and NaN or Inf that the device finds in its results or state. Private to optim/.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <sherd/optim/whole/detail/team.h>

namespace sherd {

/// Ends the launch with the matrix, the step and the rank of the first error: its rank throws it, the others quote it.
/// The host waits for nothing: it reads the statuses of a step once the device has written them.
class RuleGuard {
 public:
  /// @param team outlives it.
  RuleGuard(std::string rule, std::string rank, MatrixTeam& team)
      : rule_(std::move(rule)), rank_(std::move(rank)), team_(team) {}

  /// Calls the rule for these matrices. InvalidArgument and ShapeMismatch get the step and the matrices.
  void call(const std::vector<int>& matrices, const std::function<void()>& rule) const;
  /// Begins a step. @throws as require_sound().
  void begin_step() {
    require_sound();
    ++step_;
  }
  /// Queues the copy of the step's statuses.
  void end_step(Stream& compute);
  /// @throws Error naming the matrices whose result or state an earlier step made non-finite, as far as the device has
  /// found it.
  void require_sound();

 private:
  struct Step {
    int64_t step;
    Tensor statuses;
    Event copied;
  };
  /// Returns the prefix of an error.
  std::string place(int64_t step) const;

  std::string rule_, rank_;
  MatrixTeam& team_;
  std::deque<Step> pending_;
  std::string failure_;
  int64_t step_ = 0;  // of this process
};

}  // namespace sherd
