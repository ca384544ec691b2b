// How many steps each optimizer of a root has made, where they do not step together.
#pragma once

#include <cstdint>
#include <vector>

#include <sherd/checkpoint/format/manifest.h>
#include <sherd/optim/optimizer.h>

namespace sherd {

/// Writes every optimizer's steps() down in the training state that is to be saved (info "optimizer.steps":
/// JSON, by the name of the first parameter that the optimizer updates, in the order of named_parameters()).
/// A generator and a discriminator, say, then go on with counts of their own; a program with one optimizer
/// does not need it.
void record_optimizer_steps(TrainingState& training, ModuleBase& root,
                            const std::vector<const Optimizer*>& optimizers);

/// What is written down of the optimizer that updated the first parameter of this one; TrainingState::step
/// where nothing is. load_checkpoint() and resume() set it.
int64_t recorded_optimizer_steps(const TrainingState& training, ModuleBase& root, const Optimizer& optimizer);

}  // namespace sherd
