// Options of the parts of train/, made from train_gpt's flags.
#pragma once

#include <sherd/checkpoint/weights.h>
#include <sherd/comm/bootstrap/bootstrap.h>
#include <sherd/optim/schedule.h>
#include <sherd/train/report/trace_output.h>
#include <sherd/train/saving/saving.h>

#include "config.h"

namespace train_gpt {

/// --lr, --lr-schedule, --warmup, --min-lr, --decay-steps, --steps.
sherd::Schedule schedule_of(const TrainConfig& config);

/// --save, --resume, --resume-parts, --overwrite.
sherd::SaveFolder save_folder(const TrainConfig& config);

/// Those and --save-every, --keep, --async-save, --save-failure.
sherd::SavingOptions saving_options(const TrainConfig& config);

/// --trace, --timeline, --trace-steps.
sherd::TraceOptions trace_options(const TrainConfig& config);

/// What a folder of --export-weights or --export-hf that is not empty means. Of a run that can lose nothing it may be the
/// export itself, of an earlier start: one that trains no further step, or is a restart of `sherd run` in its own --save. Others are refused
/// before they train.
sherd::Existing existing_export(const TrainConfig& config);

/// Whether this process has rank 0, which alone writes all outputs but --save, as far as the environment
/// tells before the job is joined: true where it does not.
bool rank_0_is_here(const TrainConfig& config, const sherd::EnvironmentLookup& get = {});

/// Checks --save, in the process of rank 0 also --metrics, --log-dir, --loss-svg, --trace, --timeline,
/// --export-weights and --export-hf; writes nothing.
/// @throws sherd::IoError naming all that cannot be written.
void check_outputs(const TrainConfig& config, const sherd::EnvironmentLookup& get = {});

}  // namespace train_gpt
