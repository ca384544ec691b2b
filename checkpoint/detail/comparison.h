// Comparison of the tensors a model wants with those offered, and of their shapes. Private to checkpoint/.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include <sherd/checkpoint/detail/wanted.h>
#include <sherd/checkpoint/model_state.h>

namespace sherd {

/// The lists of everything that does not fit.
class Comparison {
 public:
  /// @param source for messages, such as "the checkpoint 'out/step_00000100'"
  /// @param offered all of the source; pieces are not looked at
  /// @param most_names that a list in a message has; 0 = all
  Comparison(std::string source, std::span<const CheckpointTensor> offered, const std::vector<Wanted>& all,
             const LoadOptions& options, size_t most_names = 0);

  /// @throws InvalidArgument with all that the options do not allow.
  void require_fit() const;
  void report(LoadReport& report) const;

 private:
  void compare(const Wanted& w, const CheckpointTensor& t);
  std::string names(const std::vector<std::string>& list) const;
  std::string explain_state() const;
  std::string explain_wrapper() const;

  std::string source_;
  const LoadOptions& options_;
  size_t most_names_;
  std::vector<std::string> missing_, unexpected_, other_, missing_state_, unexpected_state_, other_state_;
  std::set<std::string> needs_;  // parameters whose state is missing
  size_t needed_ = 0;            // state tensors of the run
};

}  // namespace sherd
