// Whether a run will be able to write what it is asked to, as far as can be told before it begins.
#pragma once

#include <sherd/comm/bootstrap/bootstrap.h>

#include "config.h"

namespace train_gpt {

/// Whether this process has rank 0, which alone writes all outputs but --save, as far as the environment
/// tells before the job is joined: true where it does not.
bool rank_0_is_here(const TrainConfig& config, const sherd::EnvironmentLookup& get = {});

/// Looks at --save, in the process of rank 0 also at --metrics, --loss-svg, --trace, --timeline and
/// --export-weights; writes nothing.
/// @throws sherd::IoError naming all that cannot be written.
void check_outputs(const TrainConfig& config, const sherd::EnvironmentLookup& get = {});

/// Whether the run goes on from a checkpoint in the folder that it saves in (--resume, but not with
/// --resume-parts model, which begins a new run).
bool goes_on_in_save_folder(const TrainConfig& config);

/// @throws sherd::IoError when --save names a folder with another run's checkpoints: with any that this run
/// does not go on from (--resume), unless --overwrite is given. Says what differs, as far as the
/// newest of them can be read.
void check_save_folder(const TrainConfig& config);

}  // namespace train_gpt
