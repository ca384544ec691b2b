// Repeated saves of the tensors of all ranks, in the foreground or in the background.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sherd/checkpoint/files/file_system.h>
#include <sherd/checkpoint/save_plan.h>
#include <sherd/comm/core/communicator.h>

namespace sherd {

struct SaverOptions {
  /// DIR of FORMAT.md; created with its parents when missing. One run uses it at a time. An existing
  /// checkpoint of an equal step is replaced, others stay. Give each run a folder of its own, or see
  /// `overwrite` and `admit`.
  std::filesystem::path folder = {};
  /// Number of checkpoints to keep, newest first, as CheckpointFolder::prune() counts them (a non-finite
  /// checkpoint never causes the removal of a finite one); 0 = all.
  int64_t keep = 0;
  /// Not empty: among this run's checkpoints whose kEvalData (TrainingState::info) is this text, `best` names
  /// the one with the lowest kEvalLoss, and `keep` never removes it. After each commit `best` is replaced
  /// before others are removed.
  std::string best_of = {};
  /// Copy the tensors to host memory on a stream beside training; a thread of this rank writes in the
  /// background.
  bool async = false;
  /// Checkpoint that this run resumed from, if any. When it is in `folder`, `keep` also counts and removes it
  /// and older ones. Otherwise `keep` covers only this saver's checkpoints: those of other runs stay, and so
  /// do newer ones that could not be used.
  std::filesystem::path continues = {};
  /// Fail a save of a non-finite model with an IoError that names the tensors, and commit nothing. A run can
  /// then always resume from the newest checkpoint.
  bool refuse_not_finite = false;
  /// Replace checkpoints of another run that are in `folder` at the start: all are removed once this saver
  /// has committed a checkpoint with a finite model, and not before.
  bool overwrite = false;
  /// Rank 0 calls it while it holds the folder's lock, so that no other run can save there. An exception
  /// refuses the folder, on every rank.
  std::function<void()> admit = {};
  /// Null: FileSystem::posix(). Outlives the saver.
  FileSystem* files = nullptr;
};

/// Thrown on rank 0 by a save that SaverOptions::refuse_not_finite refuses; an IoError on the others.
class NotFiniteModel : public IoError {
 public:
  using IoError::IoError;
};

/// Report of a finished save, the same on every rank except for members known to rank 0 only.
struct SaveReport {
  std::filesystem::path committed;
  int64_t step = 0;
  int64_t bytes = 0;                 // of all files of all ranks, without the manifest
  int64_t not_finite = 0;            // non-finite values of the model; known to rank 0 only
  double blocked = 0;                // seconds that save() (or snapshot()) took on this rank
  double seconds = 0;                // seconds from the call to the commit
  std::vector<std::string> removed;  // by `keep` or `overwrite`; known to rank 0 only
  /// Text of a failure after the commit, if any: of `latest` or `best`, of the removal of others, or of making the
  /// commit survive a power failure (nothing is removed then). Known to rank 0 only.
  std::string warning;
};

/// Saver of checkpoints. All calls except the destructor are collective: same calls, same order, on every
/// rank. The rank's thread uses it.
///
/// The constructor exchanges the plans of all ranks once and checks that together they cover every tensor
/// exactly once. With `async` it reserves host memory for one copy of this rank's data. A save then takes one
/// gather (of checksums) and a few one-word collectives, independent of the number of tensors, on a
/// communicator of its own. Rank 0 commits. A failure on any rank (full disk, failed sync, ...) becomes the
/// same IoError on every rank: from save(), or with `async` from the next call of any kind. Nothing is
/// committed then, and an earlier checkpoint is never changed. A failure after the commit does not fail the
/// save: see SaveReport::warning. After a failure the saver may be used again.
class CheckpointSaver {
 public:
  /// @throws IoError, InvalidArgument and ShapeMismatch, the same on every rank.
  CheckpointSaver(std::shared_ptr<Communicator> world, std::vector<LocalTensor> tensors,
                  SaverOptions options);
  /// Waits for a background save and ignores its failure; call wait() to receive it. When an exception
  /// unwinds the rank, it aborts the group first.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  /// Saves the tensors' values after all operations queued on the compute stream so far. Waits for a
  /// background save first: there is never more than one, nor more than one host copy. With `async` it waits
  /// for nothing else: the copies are queued, and later operations on the compute stream come after them. What rests on
  /// the host is read in place (reads_in_place()).
  /// @throws RanksDiffer on every rank when ranks save different steps.
  void save(const TrainingState& state);
  /// First half of save(), with `async`: queues the copies beside the compute stream's next operations.
  /// @returns the event after the copies: no operation may change the tensors before it. Tensors that rest on the host are read
  /// after it, until Device::tier_reads() has none of them: optimizers and changes of weights wait for that.
  /// @throws InvalidArgument without `async`.
  [[nodiscard]] Event snapshot(const TrainingState& state);
  /// Second half: writes the latest snapshot in the background. The next snapshot drops one that was not
  /// written. With reads_in_place() call it before the next update or other change of weights is queued, which waits for what it overwrites.
  /// @throws InvalidArgument without a snapshot.
  void write();
  /// Returns whether no checkpoint of SaverOptions::best_of has a loss of `loss` or less. Rank 0's `loss`
  /// counts; false for NaN and infinities. Not during a background save. @throws IoError.
  bool is_best(double loss);
  /// Returns whether no rank has a background save. One small all-reduce when there was one.
  bool idle();
  /// Rethrows a background save's error on this rank, at each call, until save(), idle() or wait() has thrown
  /// it as well. No communication: ranks may receive the error at different times.
  void poll();
  /// Waits until no background save runs.
  void wait();
  /// Returns the saves finished since the last call.
  [[nodiscard]] std::vector<SaveReport> take_reports();
  /// Returns whether a background save of some rank reads tensors that rest on the host (Place::host) where they are, while
  /// training continues: nothing copies them. An update waits, on the device, until what it overwrites has been read.
  bool reads_in_place() const;
  /// Returns the bytes of host memory for the copy; 0 without `async`, when two blocks (1 MiB each) are held
  /// at a time.
  int64_t staging_bytes() const;
  /// Returns the collectives of the saves so far; counts of the communicator given to the saver exclude them.
  /// Not during a background save.
  CommCounts counts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd
