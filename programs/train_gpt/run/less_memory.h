// Flags that would make a run's memory smaller.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <sherd/comm/launcher.h>

#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// Flag that makes the memory of a rank's device smaller.
struct MemoryFlag {
  std::string text;  // "--state-dtype bf16"
  bool same_bits;    // the run's results do not depend on it
  std::function<void(TrainConfig&)> apply;
};

/// Returns those that the run can have and does not have.
std::vector<MemoryFlag> memory_flags(const TrainConfig& config);

/// Returns what each of --offload, --master, --state-dtype and --recompute would take off the planned peak of this rank's device,
/// as a sentence; "" where none would, or the run cannot be planned.
std::string savings_in_words(const TrainConfig& config, const sherd::RankContext& rank);

}  // namespace train_gpt
