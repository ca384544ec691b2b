// Folder of checkpoints: names, commit, `latest`, `best`, pruning, and recovery after a crash (FORMAT.md sections 1
// and 2).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/base/error.h>
#include <sherd/checkpoint/files/file_system.h>
#include <sherd/checkpoint/files/save_lock.h>
#include <sherd/checkpoint/format/manifest.h>

namespace sherd {

/// Returns the name of a step's checkpoint: "step_00000100".
std::string checkpoint_name(int64_t step);
/// Returns 100 for "step_00000100"; -1 for a name that is not a checkpoint's.
int64_t step_of_checkpoint_name(std::string_view name);
bool is_checkpoint_name(std::string_view name);
bool is_temporary_name(std::string_view name);

/// Makes the folder of CheckpointFolder::temporary(). @throws IoError when the name exists; it is left as it
/// is.
void create_temporary(FileSystem& files, const std::filesystem::path& path);

/// Committed checkpoint, by its manifest's first bytes.
struct CommittedCheckpoint {
  std::string name;
  uint64_t sequence = 0;
};
/// Folder with a checkpoint's name whose sequence number is unknown: any other one may be older or newer.
struct UnusableCheckpoint {
  std::string name, reason;
  /// The manifest is present and cannot be read now (EIO); it may be sound. False: it is missing or damaged.
  bool unreadable = false;
  /// Returns "NAME: REASON".
  std::string text() const { return name + ": " + reason; }
};
/// Returns the committed checkpoints below `folder`, newest (largest sequence number) first. Folders with a
/// missing, damaged or unreadable manifest are left out, and put into `unusable` where given. Reads only.
/// @throws NewerFormat where a checkpoint of the folder has a format version above this program's: which one is
/// the newest, and what may be removed, is that version's to say.
[[nodiscard]] std::vector<CommittedCheckpoint> list_checkpoints(
    const std::filesystem::path& folder, FileSystem& files,
    std::vector<UnusableCheckpoint>* unusable = nullptr);

/// Committed checkpoint with the loss of the evaluation that it was saved after.
struct EvaluatedCheckpoint {
  std::string name;
  double loss = 0;
};

/// Checkpoints that pruning counts and removes; an empty function means all of them.
struct PruneRule {
  /// Returns whether a checkpoint counts as kept. Called newest first, until enough are kept (finite ones,
  /// and in total); those that do not count are left alone.
  std::function<bool(const CommittedCheckpoint&)> counts = {};
  /// Returns whether an older one may be removed.
  std::function<bool(const CommittedCheckpoint&)> removable = {};
};

/// Error after a complete commit: what() names both.
class LateFailure : public IoError {
 public:
  LateFailure(const std::string& what, bool durable) : IoError(what), durable_(durable) {}
  /// Returns false when the commit may not survive a power failure: no other checkpoint may be removed for
  /// it.
  bool durable() const { return durable_; }

 private:
  bool durable_;
};

/// Exclusive writer of a save folder. One thread at a time uses it.
class CheckpointFolder {
 public:
  /// Creates the folder and missing parents, takes its lock, removes the rest of unfinished saves.
  /// @throws IoError when another run saves there, or the folder cannot be used; NewerFormat before anything is
  /// changed.
  CheckpointFolder(std::filesystem::path path, FileSystem& files,
                   LockHolder self = LockHolder::of_this_process());

  const std::filesystem::path& path() const { return path_; }
  /// Returns the attempt number, which distinguishes this holder of the lock from earlier and later ones
  /// (FORMAT.md, section 2).
  uint64_t attempt() const { return lock_->attempt(); }
  /// Returns a new temporary folder for a checkpoint of that step, not yet created. Names are unique among
  /// all runs.
  /// @throws IoError when the checkpoint's name exists and is not a checkpoint.
  std::filesystem::path temporary(int64_t step);
  /// Returns the sequence number of the next commit, above that of every checkpoint in the folder. Where one cannot be
  /// read, it is above all numbers that it can have.
  uint64_t next_sequence() const { return last_sequence_ + 1; }
  /// Commits a checkpoint whose tensor files are written and synced below `temporary`. Syncs their folders,
  /// writes the manifest (sequence set to next_sequence()), syncs, renames, and updates `latest`. On return
  /// the checkpoint is durable.
  /// @returns the committed folder.
  /// @throws LateFailure when the checkpoint is committed completely, with a message about the missing part
  /// (such as `latest`).
  /// @throws IoError when it is not committed at all. Other checkpoints are unharmed in either case. A
  /// non-finite model does not replace a finite one of the same step: that is an IoError, too. Then discard
  /// `temporary` in either case.
  /// @throws LostFolder, as all other writes here: another process has taken the folder over. Nothing is
  /// committed then; when it happened between the commit and `latest`, `latest` stays as it is.
  std::filesystem::path commit(const std::filesystem::path& temporary, int64_t step, Manifest& manifest);
  /// Removes a temporary folder that will not be committed; failures are left to the next sweep.
  void discard(const std::filesystem::path& temporary) noexcept;
  /// Keeps the `keep` newest checkpoints (>= 1) by sequence number, and the `keep` newest with a finite
  /// model; these are the same ones while training is finite. Removes the others, as far as `rule` allows, but
  /// the one that best() names. At most 2 * keep + 1 stay, and a non-finite checkpoint never causes the removal of a finite one. Folders
  /// without a sound manifest are left alone. `latest` names one that stays. @returns the removed names.
  std::vector<std::string> prune(int64_t keep, const PruneRule& rule = {});
  /// Returns the checkpoint with the lowest kEvalLoss (TrainingState::info) among those with a finite model
  /// whose kEvalData is `data` and that `counts` selects; of equal ones the oldest.
  std::optional<EvaluatedCheckpoint> lowest_loss(
      const std::string& data, const std::function<bool(const CommittedCheckpoint&)>& counts);
  /// Returns the name in `best`; empty when absent.
  std::string best() { return named_in("best"); }
  /// Replaces `best` by rename. @throws IoError, LostFolder: then `best` stays as it is.
  void write_best(const std::string& name) { write_name("best", name); }
  /// Removes the checkpoints that `removable` selects; at least one stays. Removes `best` where it names one
  /// of them. @returns their names.
  std::vector<std::string> remove(const std::function<bool(const CommittedCheckpoint&)>& removable);

 private:
  void sweep();
  /// Returns list_checkpoints(), and forgets what is known of others.
  std::vector<CommittedCheckpoint> listed();
  /// Description of a checkpoint by its manifest.
  struct Known {
    bool finite = false;
    std::optional<double> loss{};
    std::string data{};
  };
  static Known known_of(const Manifest& manifest);
  const Known& known(const CommittedCheckpoint& checkpoint);
  bool is_finite(const std::string& name);
  std::vector<std::string> remove_all(const std::vector<CommittedCheckpoint>& old, const std::string& newest);
  /// Returns the name in the file `pointer` (`latest`, `best`); empty when absent.
  std::string named_in(const char* pointer);
  void write_name(const char* pointer, const std::string& name);
  std::filesystem::path temporary_name(const std::string& name);

  std::filesystem::path path_;
  FileSystem& files_;
  std::string token_;
  int64_t count_ = 0;
  std::optional<SaveLock> lock_;
  uint64_t last_sequence_ = 0;
  std::map<uint64_t, Known> known_;  // by sequence number, of manifests in the folder that were read
};

}  // namespace sherd
