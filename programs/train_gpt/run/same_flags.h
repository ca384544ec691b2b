// Comparison of the flags that the processes of a job were given.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include <sherd/comm/launcher.h>

#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// Compares the settings that must be equal on all ranks: every scope of settings.proto but OF_RANK; of a path only whether
/// it is given. Collective; returns at once where all ranks are one process.
/// @param check_files compares the files that the flags name; called on all ranks or on none, where all were given flags
/// for the same kinds of files. Sizes and settings are read from files, so that a file that differs is named before them.
/// @throws sherd::RanksDiffer on every rank that names the flags, the odd ranks and this rank's values.
void check_same_flags(const sherd::RankContext& rank, const TrainConfig& config,
                      const std::function<void()>& check_files = {});

/// Returns rank 0's `mine`, for collective work for a file that rank 0 alone writes: the other ranks may lack
/// its flag. Collective; `mine` where all ranks are one process.
bool as_rank_0_says(const sherd::RankContext& rank, const TrainConfig& config, bool mine);

/// Replaces the values by those of rank 0. Collective.
void take_from_rank_0(const sherd::RankContext& rank, std::span<int64_t> values);

}  // namespace train_gpt
