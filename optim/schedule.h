// Learning rate schedules as pure functions of the step, so that a resumed run continues them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sherd {

/// Course of the learning rate after warm-up.
enum class RateDecay {
  constant,  // unchanged
  cosine,    // decreases along half a cosine to the minimum rate (Loshchilov & Hutter 2017)
  linear,    // decreases linearly
  wsd,       // warm-up, stable, decay (Hu et al. 2024): constant, then linear in the last decay_steps
};

const char* name_of(RateDecay d);
/// @throws InvalidArgument listing the legal names.
[[nodiscard]] RateDecay parse_rate_decay(std::string_view name);

struct Schedule {
  double lr = 1e-3;
  /// Number of first steps, in which the rate rises linearly to `lr`.
  int64_t warmup = 0;
  RateDecay decay = RateDecay::constant;
  /// Steps of the whole training, also where a run ends before. A decreasing rate reaches its minimum there,
  /// and stays.
  int64_t steps = 0;
  /// Minimum rate, as a fraction of `lr`.
  double least = 0.1;
  /// For wsd.
  int64_t decay_steps = 0;
};

/// Returns all invalid options, each with its value; empty when valid.
[[nodiscard]] std::vector<std::string> problems_of(const Schedule& schedule);

/// Returns the learning rate of a step counted from 0: lr * (step + 1) / warmup during the first `warmup`
/// steps, then as RateDecay says: lr, or from lr down to least * lr, which step `steps` would have. Without
/// steps after warm-up (steps <= warmup), it stays lr.
[[nodiscard]] double learning_rate(const Schedule& schedule, int64_t step);

}  // namespace sherd
