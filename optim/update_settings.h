// Settings of some parameters that replace their optimizer's options.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sherd/kernels/device/dtype.h>
#include <sherd/kernels/rest/rest.h>

namespace sherd {

/// Unset fields keep the optimizer's options. Rules (RoutingRule) give them at every start; like all options
/// they are in no checkpoint.
struct UpdateSettings {
  /// Factor of the learning rate of Optimizer::step().
  double lr_factor = 1;
  /// Replaces OptimizerOptions::weight_decay, also for parameters that would not decay (biases, gains).
  std::optional<double> weight_decay = {};
  /// For AdamW.
  std::optional<double> beta1 = {}, beta2 = {}, eps = {};
  /// Replaces FullyShardOptions::master; route() sets it (Parameter::set_master()).
  std::optional<Master> master = {};
  /// Replaces OptimizerOptions::state_dtype.
  std::optional<DType> state_dtype = {};
  /// Replace FullyShardOptions::master_place, as master, and OptimizerOptions::state_place.
  std::optional<Place> master_place = {}, state_place = {};

  bool has_betas() const { return beta1 || beta2 || eps; }
  bool operator==(const UpdateSettings&) const = default;
};

/// Returns whether elementwise state may be kept in it: f32, bf16, or i8 (8 bits, kernels/quantize/quantize.h).
constexpr bool is_state_dtype(DType t) { return t == DType::f32 || t == DType::bf16 || t == DType::i8; }

/// Returns all invalid settings, each with its value; empty when valid.
[[nodiscard]] std::vector<std::string> problems_of(const UpdateSettings& settings);
/// Returns the set fields, e.g. "lr x 0.1, weight decay 0"; empty when none is set.
std::string to_string(const UpdateSettings& settings);

}  // namespace sherd
