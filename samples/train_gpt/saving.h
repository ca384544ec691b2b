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

/// --save, --save-every, --keep and --async-save. Every rank makes the same calls: for each step, told() and
/// after_step(), in whatever order.
class Saving {
 public:
  /// Does nothing without --save. Collective.
  Saving(Trainer& trainer, const TrainConfig& config);
  /// Whether `step` must be told of before after_step(): training waits while it is saved.
  bool stops_after(int64_t step) const;
  /// Steps up to this one are in the metrics: they may be committed.
  void told(int64_t step);
  /// `step` was issued, and none after it: saves when one is due. @returns how long training waited for it,
  /// in ms; nothing when none was due. With --async-save training waits neither for the step nor for the
  /// disk: the step's weights are copied beside the coming step, and written once it is told of; what falls
  /// due while another checkpoint is being written is saved after the first step that finds that one
  /// finished. The last step waits until everything is on disk.
  /// @throws sherd::IoError for a save that failed, also when that was written behind.
  std::optional<double> after_step(int64_t step);
  /// A checkpoint of what the trainer holds (it came from elsewhere, or is only built), unless that is the
  /// very checkpoint it was resumed from.
  void save_now();
  /// One line for each save that has finished since the last call.
  std::vector<std::string> take_lines();

 private:
  bool falls_due(int64_t step) const;
  bool is_there_already(const sherd::Resumed& resumed, const sherd::TrainingState& state) const;

  Trainer& trainer_;
  const TrainConfig& config_;
  std::optional<sherd::CheckpointSaver> saver_;
  std::vector<std::string> lines_;
  bool due_ = false;         // a save, as soon as none is in flight
  int64_t told_ = 0;         // the latest step in the metrics
  int64_t snapshot_of_ = 0;  // the step whose snapshot is not being written yet, or 0
};

}  // namespace train_gpt
