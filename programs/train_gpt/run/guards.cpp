// The trainer's checks of the machine: a step done twice, weights compared among ranks.
#include <sherd/train/guards/repeat_step.h>
#include <sherd/train/guards/replica_check.h>

#include "train_gpt/run/trainer.h"

namespace train_gpt {

Trainer::Verified Trainer::verify_step() {
  Verified v;
  const int64_t step = step_, sequences = sequences_;
  const sherd::SkipLimit skips = skips_;
  const sherd::CommCounts carried = carried_;
  v.repeated = sherd::repeat_step(model_, *optimizer_, [&]() -> sherd::StepFigures {
    step_ = step;
    sequences_ = sequences;
    skips_ = skips;
    carried_ = carried;
    v.result = train_step();
    return {.loss = v.result.loss, .grad_norm = v.result.grad_norm};
  });
  return v;
}

sherd::ReplicaCheck Trainer::check_replicas() {
  sync_parameters();
  return sherd::check_replicas(model_, optimizer_ ? &*optimizer_ : nullptr);
}

}  // namespace train_gpt
