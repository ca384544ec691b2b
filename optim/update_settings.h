// Settings of some parameters that replace their optimizer's options.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sherd {

/// What is not set stays as the optimizer's options say. Given by rules (RoutingRule) at every start; like
/// all options they are in no checkpoint.
struct UpdateSettings {
  /// Times the learning rate that Optimizer::step() is given.
  double lr_factor = 1;
  /// Instead of OptimizerOptions::weight_decay, and also for parameters that would not decay (biases, gains).
  std::optional<double> weight_decay = {};
  /// AdamW's.
  std::optional<double> beta1 = {}, beta2 = {}, eps = {};

  bool has_betas() const { return beta1 || beta2 || eps; }
  bool operator==(const UpdateSettings&) const = default;
};

/// What cannot be, each with its value; empty when all is well.
std::vector<std::string> problems_of(const UpdateSettings& settings);
/// What is set, e.g. "lr x 0.1, weight decay 0"; empty when nothing is.
std::string to_string(const UpdateSettings& settings);

}  // namespace sherd
