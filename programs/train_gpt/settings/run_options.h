// Options of the parts of train/, made from train_gpt's flags.
#pragma once

#include <sherd/checkpoint/weights.h>
#include <sherd/comm/bootstrap/bootstrap.h>
#include <sherd/optim/schedule.h>
#include <sherd/train/report/trace_output.h>
#include <sherd/train/saving/saving.h>

#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// --lr, --lr-schedule, --warmup, --min-lr, --decay-steps, --steps.
sherd::Schedule schedule_of(const TrainConfig& config);

/// --save, --resume, --resume-parts, --overwrite.
sherd::SaveFolder save_folder(const TrainConfig& config);

/// Options of save_folder() and --save-every, --keep, --async-save, --save-failure.
sherd::SavingOptions saving_options(const TrainConfig& config);

/// --trace, --timeline, --trace-steps.
sherd::TraceOptions trace_options(const TrainConfig& config);

/// Returns how an export treats a non-empty folder of --export-weights or --export-hf. The folder may be the
/// export of an earlier start if the run can lose nothing: it trains no further step, or is a restart of
/// `sherd run` in its own --save. Other runs are refused before they train.
sherd::Existing existing_export(const TrainConfig& config);

/// Returns whether this process has rank 0, which alone writes all outputs but --save. Read from the
/// environment, before the job is joined; true if the environment does not show it.
bool rank_0_is_here(const TrainConfig& config, const sherd::EnvironmentLookup& get = {});

/// Checks --save, in the process of rank 0 also --metrics, --log-dir, --loss-svg, --trace, --timeline,
/// --export-weights and --export-hf; writes nothing.
/// @throws sherd::IoError naming all that cannot be written.
void check_outputs(const TrainConfig& config, const sherd::EnvironmentLookup& get = {});

}  // namespace train_gpt
