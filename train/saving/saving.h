// Schedule of checkpoint saves, and handling of their failures.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sherd/checkpoint/resume.h>
#include <sherd/checkpoint/saver.h>
#include <sherd/train/saving/save_folder.h>

namespace sherd {

/// What a run has to save. All of it outlives Saving.
struct SavedRun {
  std::shared_ptr<Communicator> world;
  ModuleBase& model;
  /// Null: weights alone.
  const Optimizer* optimizer = nullptr;
  /// The checkpoint that the run resumes; null for a new run.
  const Resumed* resumed = nullptr;
  /// What a checkpoint of this moment holds besides tensors; its step is the one issued last.
  std::function<TrainingState()> state;
};

/// What a save that fails (a full disk, weights that are not finite) does to training.
enum class SaveFailure {
  warn,  // the run continues and tries again when the next is due
  stop,  // it ends
};

/// A checkpoint, or a line of metrics, that could not be written and therefore ends training.
class NotWritten : public IoError {
 public:
  using IoError::IoError;
};

struct SavingOptions {
  SaveFolder folder = {};
  /// A checkpoint after every so many steps, besides the last; 0: only after that.
  int64_t every = 0;
  /// SaverOptions::keep and SaverOptions::async.
  int64_t keep = 0;
  bool async = false;
  SaveFailure on_failure = SaveFailure::warn;
  /// The step that the run ends with.
  int64_t last_step = 0;
  /// Called on every rank alike right before a checkpoint of `step` is begun, when that step is reported and
  /// no later one is issued. False: it is not saved, and not tried again. May be collective. Null: all may be
  /// saved.
  std::function<bool(int64_t step)> may_save = {};
  /// Asked on every rank alike, collective, after an attempt to save the last step failed: whether to make another one
  /// (SaveRetry::again()). Null: the first failure counts.
  std::function<bool(const std::string& failure, bool useless)> retry = {};
  /// Null: FileSystem::posix(). Outlives Saving.
  FileSystem* files = nullptr;
};

/// Weights that are infinite or NaN are never saved: such a save fails, naming tensors, and what was saved before stays.
///
/// Every rank makes the same calls: for each step, told() and after_step(), in whatever order.
class Saving {
 public:
  /// Does nothing without a folder. Collective.
  /// @throws NotWritten when another run saves there now, or did (check_save_folder()), or the folder cannot be written to.
  Saving(SavedRun run, SavingOptions options);
  /// Whether `step` must be reported (told()) before after_step(): training waits while it is saved, or while
  /// SavingOptions::may_save is called.
  bool stops_after(int64_t step) const;
  /// Marks the steps up to this one as reported, in the metrics, too: they may be committed.
  void told(int64_t step);
  /// Training ends early, with `step`, which was issued and reported: after_step() is to take it for the
  /// last.
  void ends_with(int64_t step) { last_ = step; }
  /// `step` was issued, and none after it: saves when one is due. @returns how long training waited for it,
  /// in ms; nothing when none was due. With `async` training waits neither for the step nor for the
  /// disk: the step's weights are copied beside the coming step, and written once it is reported; what falls
  /// due while another checkpoint is being written is saved after the first step that finds that one
  /// finished. The last step waits until everything is on disk. What SavingOptions::may_save takes is part of
  /// the wait.
  ///
  /// A save that failed is a warning, and what falls due next is tried as if nothing had been. The last step is saved
  /// again as long as SavingOptions::retry says so, whatever SaveFailure is.
  /// @throws NotWritten for it with SaveFailure::stop, also when it was written behind, unless the last step follows.
  std::optional<double> after_step(int64_t step);
  /// A checkpoint of what the run holds (it came from elsewhere, or is only built), unless that is the
  /// very checkpoint it was resumed from.
  void save_now();
  /// One line for each save that has finished since the last call; what failed after its commit becomes a
  /// warning.
  std::vector<std::string> take_lines();
  /// One for each save that failed, and for what take_lines() found. With `async` ranks may receive it after
  /// different steps.
  std::vector<std::string> take_warnings() { return std::exchange(warnings_, {}); }
  /// The longest of the saves that take_lines() reported, in seconds from the call to the commit.
  std::optional<double> longest_save() const { return longest_save_; }
  /// Whether checkpoints are saved at all.
  bool saves() const { return saver_.has_value(); }
  /// Whether the checkpoint of the last step is there; the same on every rank.
  bool last_is_saved() const { return last_is_saved_; }
  /// Why the checkpoint of the last step is missing, when a save of it failed; the same on every rank.
  const std::string& last_failure() const { return last_failure_; }

 private:
  /// Whether `work`, which saves, went well. What it throws, it throws on every rank.
  template <class Work>
  bool attempt(int64_t step, Work work);
  void save_last(int64_t step);
  void warn(int64_t step, const std::string& what);
  void listen();
  bool falls_due(int64_t step) const;
  bool is_there_already(const Resumed& resumed, const TrainingState& state) const;

  SavedRun run_;
  SavingOptions options_;
  std::optional<CheckpointSaver> saver_;
  std::vector<std::string> lines_, warnings_;
  std::string last_failure_;
  int64_t last_;             // step of training
  bool last_is_saved_ = false;
  int64_t behind_ = 0;       // the step that is being written behind training
  bool heard_ = false;       // that it failed
  bool ending_ = false;  // the last step is being saved: an earlier save that failed ends nothing any more
  bool due_ = false;         // a save, as soon as none is in flight
  int64_t told_ = 0;         // the latest step in the metrics
  std::optional<double> longest_save_;
  int64_t snapshot_of_ = 0;  // the step whose snapshot is not being written yet, or 0
};

}  // namespace sherd
