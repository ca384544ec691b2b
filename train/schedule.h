// The learning rate of every step.
#pragma once

#include <cstdint>

namespace sherd {

/// What the learning rate does after warm-up.
enum class RateDecay {
  constant,  // stays
  cosine,    // falls along half a cosine to a tenth of it
};

struct Schedule {
  double lr = 1e-3;
  /// First steps, in which the rate rises linearly to `lr`.
  int64_t warmup = 0;
  RateDecay decay = RateDecay::constant;
  /// Of the whole training, also where a run ends before: the cosine reaches its end there.
  int64_t steps = 0;
};

/// Learning rate of a step counted from 0: lr * (step + 1) / warmup during the first `warmup` steps, then lr,
/// or with the cosine half a cosine from lr down to lr / 10, which step number `steps` would have. A pure
/// function, so that a run that is resumed goes on where it was.
double learning_rate(const Schedule& schedule, int64_t step);

}  // namespace sherd
