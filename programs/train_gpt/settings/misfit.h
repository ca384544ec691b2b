// Comparison of a run's flags with a checkpoint's model.
#pragma once

#include <string>

#include <sherd/checkpoint/format/manifest.h>

#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// Flags of the model and its optimizer that differ from those of the saved run: "--heads 4 (here 2), --dim
/// 64 (here 32)". `required` lists only those that tensors' shapes do not show. Both are empty if all agree
/// or the saved flags are unknown.
struct FlagDifferences {
  std::string all, required;
};
FlagDifferences flag_differences(const sherd::TrainingState& saved, const TrainConfig& config);

/// Flags of the data, the ranks, the model and training in which the run that saved had other values: a few
/// of them, and how many more there are.
std::string run_differences(const sherd::TrainingState& saved, const TrainConfig& config);

/// Returns the differences for sherd::resume(). @throws sherd::InvalidArgument when the model would compute
/// something else although every shape fits.
std::string misfit(const sherd::TrainingState& saved, const TrainConfig& config);

}  // namespace train_gpt
