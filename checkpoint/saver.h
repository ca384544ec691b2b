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
#include <sherd/comm/communicator.h>

namespace sherd {

struct SaverOptions {
  /// DIR of FORMAT.md; created when missing, its parents, too. One run has it at a time. Of checkpoints that
  /// lie there already the one of an equal step is replaced, others stay: give each run a folder of its own,
  /// or see `overwrite` and `admit`.
  std::filesystem::path folder = {};
  /// Checkpoints to keep, newest first, as CheckpointFolder::prune() counts them (a checkpoint whose model is
  /// not finite never makes a finite one go); 0 = all.
  int64_t keep = 0;
  /// The tensors are copied to host memory on a stream beside training; a thread of this rank writes behind.
  bool async = false;
  /// The checkpoint that this run goes on from, if it does. When it lies in `folder`, `keep` counts and
  /// removes it and older ones, too; otherwise only what this saver saved: other runs' checkpoints stay, and
  /// so do those that were newer but could not be used.
  std::filesystem::path continues = {};
  /// A save whose model is not finite fails, with an IoError that names the tensors, and nothing is committed: the
  /// newest checkpoint is then always one that a run can go on from.
  bool refuse_not_finite = false;
  /// Checkpoints that lie in `folder` at the beginning are another run's and are to be replaced: all of them
  /// are removed once this saver has committed a checkpoint whose model is finite, and not before.
  bool overwrite = false;
  /// Rank 0 calls it when it holds the folder's lock, so that no other run can save there any more: what it
  /// throws refuses the folder, on every rank.
  std::function<void()> admit = {};
  /// Null: FileSystem::posix(). Outlives the saver.
  FileSystem* files = nullptr;
};

/// Thrown on rank 0 by a save that SaverOptions::refuse_not_finite refuses; an IoError on the others.
class NotFiniteModel : public IoError {
 public:
  using IoError::IoError;
};

/// A finished save, the same on every rank but for what rank 0 alone knows.
struct SaveReport {
  std::filesystem::path committed;
  int64_t step = 0;
  int64_t bytes = 0;                 // of all files of all ranks, without the manifest
  int64_t not_finite = 0;            // values of the model that are infinite or NaN; known to rank 0 only
  double blocked = 0;                // seconds that save() (or snapshot()) took on this rank
  double seconds = 0;                // from the call to the commit
  std::vector<std::string> removed;  // by `keep` or `overwrite`; known to rank 0 only
  /// What failed after the commit, in words, if anything did: `latest`, the removal of others, or making sure
  /// that the commit survives a power failure (nothing is removed then). Known to rank 0 only.
  std::string warning;
};

/// All calls but the destructor are collective: same calls, same order, on every rank. Used by the rank's
/// thread.
///
/// The constructor exchanges the plans of all ranks once, checks that together they cover every tensor
/// exactly once, and with `async` reserves host memory for one copy of what this rank writes. A save then
/// takes one gather (of checksums) and a few one-word collectives, whatever the number of tensors, on a
/// communicator of its own. Rank 0 commits. A failure on any rank (full disk, failed sync, ...) becomes the
/// same IoError on every rank: from save(), or with `async` from the next call of any kind; nothing is
/// committed then, and an earlier checkpoint is never touched. What fails once the checkpoint is committed is
/// no failure of the save: see SaveReport::warning. After a failure the saver may be used again.
class CheckpointSaver {
 public:
  /// @throws IoError, InvalidArgument and ShapeMismatch, the same on every rank.
  CheckpointSaver(std::shared_ptr<Communicator> world, std::vector<LocalTensor> tensors,
                  SaverOptions options);
  /// Waits for a save in flight and swallows its failure: call wait() to hear of it. Destroyed by an
  /// exception that unwinds the rank, it aborts the group first.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  /// Takes what the tensors hold after all work queued on the compute stream so far. Waits for a save in
  /// flight first: there is never more than one, nor more than one host copy. With `async` it waits for
  /// nothing else: the copies are queued, and work queued on the compute stream from now on comes after them.
  /// @throws RanksDiffer on every rank when ranks save different steps.
  void save(const TrainingState& state);
  /// With `async`, save() in two halves. This one queues the copies beside what the compute stream gets to do
  /// meanwhile. @returns when they are made: no work may change the tensors before.
  /// @throws InvalidArgument without `async`.
  Event snapshot(const TrainingState& state);
  /// Has the latest snapshot written. A snapshot that no one asked to write is dropped by the next.
  /// @throws InvalidArgument when there is none.
  void write();
  /// True when no rank has a save in flight. One small all-reduce when there was one.
  bool idle();
  /// Throws the error of a save in flight that has failed, and throws it again at each call until save(), idle()
  /// or wait() has thrown it as well. No communication: ranks may learn of the error at different times.
  void poll();
  /// Returns when no save is in flight.
  void wait();
  /// Saves finished since the last call.
  std::vector<SaveReport> take_reports();
  /// Bytes of host memory for the copy; 0 without `async`, when two blocks (1 MiB each) are held at a time.
  int64_t staging_bytes() const;
  /// Collectives of the saves so far; those of the communicator that the saver was given do not include them.
  /// Not while a save is in flight.
  CommCounts counts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd
