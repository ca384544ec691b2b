// What a run's flags say about a checkpoint's model.
#pragma once

#include <string>

#include <sherd/checkpoint/format/manifest.h>

#include "config.h"

namespace train_gpt {

/// The flags that make the model and its optimizer, where the run that saved had others: "--heads 4 (here 2),
/// --dim 64 (here 32)". `required` lists those alone that tensors' shapes do not show. Both empty where all
/// agree or nothing is known.
struct FlagDifferences {
  std::string all, required;
};
FlagDifferences flag_differences(const sherd::TrainingState& saved, const TrainConfig& config);

/// Flags of the data, the ranks, the model and training in which the run that saved had other values: a few
/// of them, and how many more there are.
std::string run_differences(const sherd::TrainingState& saved, const TrainConfig& config);

/// As sherd::resume() asks for it. @throws sherd::InvalidArgument when the model would compute something else
/// although every shape fits.
std::string misfit(const sherd::TrainingState& saved, const TrainConfig& config);

}  // namespace train_gpt
