// Flags that would make a run's memory smaller.
#pragma once

#include <string>

#include <sherd/comm/launcher.h>

#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// Returns what each of --offload, --master, --state-dtype and --recompute would take off the planned peak of this rank's device,
/// as a sentence; "" where none would, or the run cannot be planned.
std::string savings_in_words(const TrainConfig& config, const sherd::RankContext& rank);

}  // namespace train_gpt
