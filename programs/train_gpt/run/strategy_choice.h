// --strategy auto: the fastest sharding that fits, by dry runs.
#pragma once

#include <string>

#include <sherd/comm/launcher.h>

#include "train_gpt/run/search.h"
#include "train_gpt/settings/train_config.h"

namespace train_gpt {

struct StrategyChoice {
  TrainConfig config;  // with its strategy
  std::string reason;  // a line; empty where nothing was chosen
};

/// Returns the fastest run that fits of those that differ in TrainConfig::chosen alone and have the bits of optim_grads_params. The
/// limit is --memory-limit, or the hardware's memory.
/// @throws sherd::OutOfMemory naming the nearest one and the fastest changes that fit, where none does.
[[nodiscard]] StrategyChoice choose_strategy(const TrainConfig& config, SearchOptions options);

/// Returns rank 0's choice, by --hardware or the profile of its device. A run that does not train has optim_grads_params. Collective
/// where the strategy is auto; else the run as it is. @throws as choose_strategy() on every rank
[[nodiscard]] StrategyChoice choose_strategy(const sherd::RankContext& rank, const TrainConfig& config);

}  // namespace train_gpt
