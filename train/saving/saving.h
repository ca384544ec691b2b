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

/// State of a run to save. All of it outlives Saving.
struct SavedRun {
  std::shared_ptr<Communicator> world;
  ModuleBase& model;
  /// Null: weights alone.
  const Optimizer* optimizer = nullptr;
  /// The checkpoint that the run resumes; null for a new run.
  const Resumed* resumed = nullptr;
  /// Returns the state of this moment besides tensors; its step is the one issued last.
  std::function<TrainingState()> state;
};

/// Effect of a failed save (a full disk, non-finite weights) on training.
enum class SaveFailure {
  warn,  // the run continues and tries again when the next is due
  stop,  // the run ends
};

/// A checkpoint, or a line of metrics, that could not be written and therefore ends training.
class NotWritten : public IoError {
 public:
  using IoError::IoError;
};

struct SavingOptions {
  SaveFolder folder = {};
  /// Interval of checkpoints in steps; 0: only after the last step.
  int64_t every = 0;
  /// SaverOptions::keep and SaverOptions::async.
  int64_t keep = 0;
  bool async = false;
  /// SaverOptions::best_of: not empty, evaluated() makes a save due where the loss is the lowest so far.
  std::string best_of = {};
  SaveFailure on_failure = SaveFailure::warn;
  /// Last step of the run.
  int64_t last_step = 0;
  /// Called on every rank alike right before a checkpoint of `step` is begun, when that step is reported and
  /// no later one is issued. False: it is not saved, and not tried again. May be collective. Null: all may be
  /// saved.
  std::function<bool(int64_t step)> may_save = {};
  /// Called on every rank alike, collective, after a failed attempt to save the last step. Returns whether to
  /// make another one (SaveRetry::again()). Null: the first failure counts.
  std::function<bool(const std::string& failure, bool useless)> retry = {};
  /// Null: FileSystem::posix(). Outlives Saving.
  FileSystem* files = nullptr;
};

/// Non-finite weights are never saved: such a save fails, naming tensors, and earlier checkpoints stay.
///
/// Every rank makes the same calls: told() and after_step() for each step, in any order.
class Saving {
 public:
  /// Does nothing without a folder. Collective.
  /// @throws NotWritten when another run saves there now, or did (check_save_folder()), or the folder cannot be written to.
  Saving(SavedRun run, SavingOptions options);
  /// Returns whether `step` must be reported (told()) before after_step(): training waits while it is saved,
  /// or while SavingOptions::may_save is called, or updates wait for a background save (CheckpointSaver::reads_in_place()).
  bool stops_after(int64_t step) const;
  /// Marks the steps up to this one as reported, in the metrics, too: they may be committed.
  void told(int64_t step);
  /// Reports the loss of an evaluation after `step`, before after_step(step), which then writes it into the
  /// checkpoint that it saves, if it saves one. Rank 0's loss counts. With `best_of`, after_step(step) waits
  /// for a background save, and saves a loss below that of every checkpoint of `best_of`. NaN, infinities and
  /// an equal loss make no save due; after a failed save the next lower loss does.
  void evaluated(int64_t step, double loss) { evaluation_ = {step, loss}; }
  /// Ends training early with `step`, which was issued and reported: after_step() takes it for the last.
  void ends_with(int64_t step) { last_ = step; }
  /// Saves when a checkpoint is due after `step`, the latest issued step. @returns how long training waited
  /// for it, in ms; nothing when none was due. With `async` training waits neither for the step nor for the
  /// disk: the step's weights are copied beside the next step, and written once the step is reported. A
  /// checkpoint that is due while another one is being written is saved after the first step that finds that
  /// one finished. The last step waits until everything is on disk. The duration of SavingOptions::may_save
  /// is part of the wait.
  ///
  /// A failed save is a warning, and the next due save is tried as usual. The last step is saved again as
  /// long as SavingOptions::retry allows, whatever SaveFailure is.
  /// @throws NotWritten for a failed save with SaveFailure::stop, also for a background one, unless the last
  /// step follows.
  std::optional<double> after_step(int64_t step);
  /// Saves the present state (loaded from elsewhere, or just built), unless it is the checkpoint that was
  /// resumed.
  void save_now();
  /// Returns one line for each save that has finished since the last call; failures after the commit become
  /// warnings.
  [[nodiscard]] std::vector<std::string> take_lines();
  /// Returns a warning for each failed save, and for what take_lines() found. With `async` ranks may receive
  /// it after different steps.
  [[nodiscard]] std::vector<std::string> take_warnings() { return std::exchange(warnings_, {}); }
  /// Returns the longest of the saves that take_lines() reported, in seconds from the call to the commit.
  std::optional<double> longest_save() const { return longest_save_; }
  /// Returns whether checkpoints are saved at all.
  bool saves() const { return saver_.has_value(); }
  /// Returns whether the checkpoint of the last step exists; the same on every rank.
  bool last_is_saved() const { return last_is_saved_; }
  /// Returns why the checkpoint of the last step is missing, after a failed save; the same on every rank.
  const std::string& last_failure() const { return last_failure_; }

 private:
  /// Runs `work`, which saves, and returns whether it succeeded. Its exceptions are the same on every rank.
  template <class Work>
  bool attempt(int64_t step, Work work);
  void save_last(int64_t step);
  /// SavedRun::state(), with the evaluation after `step`, if there was one.
  TrainingState state_after(int64_t step) const;
  void warn(int64_t step, const std::string& what);
  void listen();
  bool falls_due(int64_t step) const;
  bool is_there_already(const Resumed& resumed, const TrainingState& state) const;

  SavedRun run_;
  SavingOptions options_;
  std::optional<CheckpointSaver> saver_;
  std::vector<std::string> lines_, warnings_;
  std::string last_failure_;
  int64_t last_;  // step of training
  bool last_is_saved_ = false;
  int64_t behind_ = 0;   // the step that is being written in the background
  bool heard_ = false;   // its failure was reported
  bool ending_ = false;  // the last step is being saved: an earlier save that failed ends nothing any more
  bool due_ = false;     // a save, as soon as none is in flight
  int64_t told_ = 0;     // the latest step in the metrics
  std::optional<double> longest_save_;
  struct Evaluation {
    int64_t step = 0;
    double loss = 0;
  } evaluation_;             // the latest
  int64_t snapshot_of_ = 0;  // the step whose snapshot is not being written yet, or 0
};

}  // namespace sherd
