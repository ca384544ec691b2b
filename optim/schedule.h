// Learning rate schedules as pure functions of the step, so that a resumed run continues them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sherd {

/// What the learning rate does after warm-up.
enum class RateDecay {
  constant,  // stays
  cosine,    // falls along half a cosine to the least rate (Loshchilov & Hutter 2017)
  linear,    // falls along a line
  wsd,       // warm-up, stable, decay (Hu et al. 2024): stays, and falls along a line in the last decay_steps
};

const char* name_of(RateDecay d);
/// @throws InvalidArgument listing the legal names.
RateDecay parse_rate_decay(std::string_view name);

struct Schedule {
  double lr = 1e-3;
  /// First steps, in which the rate rises linearly to `lr`.
  int64_t warmup = 0;
  RateDecay decay = RateDecay::constant;
  /// Of the whole training, also where a run ends before: a rate that falls reaches its end there, and stays.
  int64_t steps = 0;
  /// The least rate, as a part of `lr`.
  double least = 0.1;
  /// Of wsd.
  int64_t decay_steps = 0;
};

/// What cannot be, each with its value; empty when all is well.
std::vector<std::string> problems_of(const Schedule& schedule);

/// Learning rate of a step counted from 0: lr * (step + 1) / warmup during the first `warmup` steps, then as
/// RateDecay says: lr, or from lr down to least * lr, which step number `steps` would have. Where no step is
/// left to fall in (steps <= warmup), it stays lr.
double learning_rate(const Schedule& schedule, int64_t step);

}  // namespace sherd
