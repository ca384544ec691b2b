// Training, from its first step to its last or to where it has to end.
#pragma once

#include <chrono>
#include <string>

#include <sherd/train/guards/stop_request.h>
#include <sherd/train/report/trace_output.h>

#include "train_gpt/run/output.h"
#include "train_gpt/run/trainer.h"
#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// Sources of requests to stop a run before its last step.
struct StopSources {
  /// The process's signals; null: none are taken.
  sherd::StopRequest* signals = nullptr;
  /// Start of --max-wall.
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
};

/// End of training; the same on every rank, except for outputs of rank 0 alone.
struct TrainingEnd {
  /// Error at the end; empty without one.
  std::string wrong;
  /// Why it was asked to stop, in words: a signal, --max-wall, which may have come as late as while the last
  /// checkpoint was saved. Empty: it was not.
  std::string stopped;
  /// True if the checkpoint of the last trained step exists.
  bool saved = false;
  /// Its last checkpoint is missing, since it could not be written.
  bool unsaved = false;
  /// A restart cannot continue the run: all steps are done and the last is saved, if it was to be, or too
  /// many consecutive steps were skipped.
  bool for_good = false;
};

/// Trains until --steps or --stop-at, a signal, --max-wall, or until a guard ends the run. Collective. A run
/// that was not asked to stop gives the signals back: its last step is saved already, and a signal ends what
/// follows as ever.
/// @param out null but on rank 0. @param doing what messages about failures say the rank is at.
TrainingEnd train(Trainer& trainer, const TrainConfig& config, const StopSources& sources,
                  sherd::TraceOutput& trace, Output* out, std::string& doing);

}  // namespace train_gpt
