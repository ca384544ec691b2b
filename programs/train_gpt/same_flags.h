// Whether the processes of a job were given the same flags.
#pragma once

#include <functional>

#include <sherd/comm/launcher.h>

#include "config.h"

namespace train_gpt {

/// Compares what all ranks must have alike to train one model together: flags of data, sharding, model,
/// training, Muon and of when they save, check, evaluate, trace and generate. Where files lie, and what a
/// process computes with, is each rank's own affair, but for whether there is such a file at all. Collective;
/// nothing to do where all ranks are one process.
/// @param check_files compares the files that the flags name; called on all ranks or on none, where all were given flags
/// for the same kinds of files. Sizes and settings are read from files, so that a file that differs is named before them.
/// @throws sherd::RanksDiffer on every rank that names the flags, the odd ranks and this rank's values.
void check_same_flags(const sherd::RankContext& rank, const TrainConfig& config,
                      const std::function<void()>& check_files = {});

/// What rank 0 passes for `mine`: for what all ranks do together because rank 0 alone writes a file, whose
/// flag the others need not be given. Collective; `mine` where all ranks are one process.
bool as_rank_0_says(const sherd::RankContext& rank, const TrainConfig& config, bool mine);

}  // namespace train_gpt
