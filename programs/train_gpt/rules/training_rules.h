// Rules among the flags of schedules and optimizers, and of runs that train nothing.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/train/settings/command_line.h>

#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// --lr-schedule with --min-lr and --decay-steps; AdamW's betas. `bad` as in check_rules().
void check_training(const TrainConfig& config, const std::set<std::string_view>& bad,
                    const sherd::GivenFlags& given, std::vector<std::string>& problems);

/// --verify-step, --check-replicas and --max-wall.
void check_guards(const TrainConfig& config, const std::set<std::string_view>& bad,
                  const sherd::GivenFlags& given, std::vector<std::string>& problems);

/// --eval-only and --sample-only need a checkpoint and leave no use for flags of training; flags of sampling
/// need a sample.
void check_without_training(const TrainConfig& config, const sherd::GivenFlags& given,
                            std::vector<std::string>& problems);

}  // namespace train_gpt
