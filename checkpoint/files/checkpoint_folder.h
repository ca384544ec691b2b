// Folder of checkpoints: names, commit, `latest`, pruning, and recovery after a crash (FORMAT.md sections 1
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

#include <sherd/checkpoint/files/file_system.h>
#include <sherd/checkpoint/files/save_lock.h>
#include <sherd/checkpoint/format/manifest.h>
#include <sherd/kernels/device/error.h>

namespace sherd {

/// "step_00000100"
std::string checkpoint_name(int64_t step);
/// 100 of "step_00000100"; -1: the name is not a checkpoint's.
int64_t step_of_checkpoint_name(std::string_view name);
bool is_checkpoint_name(std::string_view name);
bool is_temporary_name(std::string_view name);

/// Makes the folder of CheckpointFolder::temporary(). @throws IoError when the name is taken: what is there is left as it
/// is.
void create_temporary(FileSystem& files, const std::filesystem::path& path);

/// A committed checkpoint, by its manifest's first bytes.
struct CommittedCheckpoint {
  std::string name;
  uint64_t sequence = 0;
};
/// Committed checkpoints below `folder`, newest (largest sequence number) first. Folders whose manifest is
/// missing or torn are left out of the list, and named in `unusable` with the reason where given. Reads only.
std::vector<CommittedCheckpoint> list_checkpoints(const std::filesystem::path& folder, FileSystem& files,
                                                  std::vector<std::string>* unusable = nullptr);

/// Which checkpoints pruning counts and removes; an empty function means all of them.
struct PruneRule {
  /// Whether a checkpoint is one of those to keep. Asked newest first, until enough are kept (finite ones,
  /// and altogether); those that do not count are left alone.
  std::function<bool(const CommittedCheckpoint&)> counts = {};
  /// Whether an older one may go.
  std::function<bool(const CommittedCheckpoint&)> removable = {};
};

/// A checkpoint is committed as a whole, but what comes after failed: what() names both.
class LateFailure : public IoError {
 public:
  LateFailure(const std::string& what, bool durable) : IoError(what), durable_(durable) {}
  /// False when the commit may not survive a power failure: no other checkpoint may go for it.
  bool durable() const { return durable_; }

 private:
  bool durable_;
};

/// The one that may write below a save folder. Used by one thread at a time.
class CheckpointFolder {
 public:
  /// Creates the folder and missing parents, takes its lock, removes what unfinished saves left.
  /// @throws IoError when another run saves there, or the folder cannot be used.
  CheckpointFolder(std::filesystem::path path, FileSystem& files,
                   LockHolder self = LockHolder::of_this_process());

  const std::filesystem::path& path() const { return path_; }
  /// The number by which this holder of the lock is told from earlier and later ones (FORMAT.md, section 2).
  uint64_t attempt() const { return lock_->attempt(); }
  /// A new temporary folder for a checkpoint of that step, not yet created. Names are unique among all runs.
  /// @throws IoError when the checkpoint's name is taken by something that is none.
  std::filesystem::path temporary(int64_t step);
  /// The sequence number that the next commit gets.
  uint64_t next_sequence() const { return last_sequence_ + 1; }
  /// All tensor files are written and synced below `temporary`: syncs their folders, writes the manifest
  /// (sequence set to next_sequence()), syncs, renames, and brings `latest` up to date. When it returns, the
  /// checkpoint is durable. @returns the committed folder. @throws LateFailure when the checkpoint is
  /// committed as a whole, and the message says what is missing (`latest`, say); IoError when it is not
  /// committed at all. No other one is harmed in either case. A model that is not finite does not replace one
  /// of the same step that is: that is an IoError, too. Then discard `temporary` in either case.
  /// @throws LostFolder, as what else writes here: another process has taken the folder over. Nothing is
  /// committed then, or when it came between the commit and `latest`, `latest` stays as it is.
  std::filesystem::path commit(const std::filesystem::path& temporary, int64_t step, Manifest& manifest);
  /// Removes a temporary folder that will not be committed; failures are left to the next sweep.
  void discard(const std::filesystem::path& temporary) noexcept;
  /// Keeps the `keep` newest checkpoints (>= 1) by sequence number, and the `keep` newest whose model is
  /// finite, which are the same ones as long as training goes well; removes the others, as far as `rule`
  /// says. Thus at most 2 * keep stay, and a checkpoint that is not finite never makes a finite one go.
  /// Folders without a sound manifest are left alone. `latest` names one that stays. @returns the names
  /// removed.
  std::vector<std::string> prune(int64_t keep, const PruneRule& rule = {});
  /// Removes those that `removable` says; at least one stays. @returns their names.
  std::vector<std::string> remove(const std::function<bool(const CommittedCheckpoint&)>& removable);

 private:
  void sweep();
  bool is_finite(const CommittedCheckpoint& checkpoint);
  bool is_finite(const std::string& name);
  std::vector<std::string> remove_all(const std::vector<CommittedCheckpoint>& old, const std::string& newest);
  /// Whether the checkpoint at `path` is the one of this number.
  bool holds(const std::filesystem::path& path, uint64_t sequence);
  /// The name in `latest`; empty when there is none.
  std::string latest();
  void write_latest(const std::string& name);
  std::filesystem::path temporary_name(const std::string& name);

  std::filesystem::path path_;
  FileSystem& files_;
  std::string token_;
  int64_t count_ = 0;
  std::optional<SaveLock> lock_;
  uint64_t last_sequence_ = 0;
  std::map<uint64_t, bool> finite_;  // by sequence number, of those whose manifest was read or written
};

}  // namespace sherd
