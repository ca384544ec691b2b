// What would make a run fit that is out of memory.
#pragma once

#include <string>

#include <sherd/comm/launcher.h>

#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// Returns the planned bytes of this rank, and the three fastest runs that would fit, a line each; "" where none would, or the run
/// cannot be planned. A run that was planned to fit, and did not, has 95 % of its planned peak as limit.
std::string remedies_in_words(const TrainConfig& config, const sherd::RankContext& rank);

}  // namespace train_gpt
