// When checkpoints are saved.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sherd/checkpoint/saver.h>

#include "config.h"
#include "report.h"
#include "trainer.h"

namespace train_gpt {

/// --save, --save-every, --keep and --async-save. Every rank makes the same calls.
class Saving {
 public:
  /// Does nothing without --save. Collective.
  Saving(Trainer& trainer, const TrainConfig& config);
  /// Saves when one is due. @returns how long training waited for it, in ms; nothing when none was due. With
  /// --async-save training never waits for the disk: what falls due while another checkpoint is being written
  /// is saved after the first step that finds that one finished. The last step waits until everything is on
  /// disk.
  /// @throws sherd::IoError for a save that failed, also when that was written behind.
  std::optional<double> after_step(const StepResult& result);
  /// A checkpoint of what the trainer holds (it came from elsewhere, or is only built), unless that is the
  /// very checkpoint it was resumed from.
  void save_now();
  /// One line for each save that has finished since the last call.
  std::vector<std::string> take_lines();

 private:
  bool is_there_already(const sherd::Resumed& resumed, const sherd::TrainingState& state) const;

  Trainer& trainer_;
  const TrainConfig& config_;
  std::optional<sherd::CheckpointSaver> saver_;
  std::vector<std::string> lines_;
  bool due_ = false;  // a save, as soon as none is in flight
};

}  // namespace train_gpt
