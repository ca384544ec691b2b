// The number of steps of each optimizer in a checkpoint.
#pragma once

#include <cstdint>
#include <vector>

#include <sherd/checkpoint/format/manifest.h>
#include <sherd/optim/optimizer.h>

namespace sherd {

/// Adds Optimizer::steps() of every optimizer to the training state (info "optimizer.steps": JSON, by the name of the first
/// parameter that the optimizer updates, in the order of named_parameters()). Adds nothing where all of them equal
/// TrainingState::step. A CheckpointSaver of checkpoint_tensors() of several optimizers calls it at every save.
void record_optimizer_steps(TrainingState& training, ModuleBase& root,
                            const std::vector<const Optimizer*>& optimizers);

/// Returns the recorded steps of the optimizer that updated the first parameter of this one; TrainingState::step
/// where nothing is recorded. load_checkpoint() and resume() set it.
int64_t recorded_optimizer_steps(const TrainingState& training, ModuleBase& root, const Optimizer& optimizer);

}  // namespace sherd
