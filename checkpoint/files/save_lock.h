// Lock of a save folder: the file `lock` (FORMAT.md, section 2).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <sherd/base/error.h>
#include <sherd/checkpoint/files/file_system.h>

namespace sherd {

/// Content of the lock file about the process that holds, or held, it.
struct LockHolder {
  /// The fence: each process that takes the folder has one more than the previous.
  uint64_t attempt = 0;
  /// 16 hexadecimal digits, drawn anew by each process that takes the folder.
  std::string token = {};
  std::string host = {};
  int64_t process = 0;
  /// UTC, "2026-11-23T08:15:00Z".
  std::string since = {};
  /// Command line, at most 400 bytes, in one line.
  std::string command = {};
  /// For a run that `sherd run` supervises: the supervisor's id, and the index of this start (from 1).
  std::string run = {};
  uint64_t start = 0;
  /// For a job of a batch system: its name, and the index of this start (0: unknown). A requeued job keeps
  /// the name.
  std::string job = {};
  uint64_t job_start = 0;
  /// The process has ended in an orderly way; only written where locks of other hosts may be invisible.
  bool released = false;

  /// Returns, for example, "attempt 7 (process 4711 on node1, since 2026-11-23T08:15:00Z, 'train_gpt --save
  /// out')".
  std::string describe() const;
  /// Returns the calling process. `run` and `start` are SHERD_RUN and SHERD_RUN_START of the environment.
  /// `job` and `job_start` are the first that is set of SHERD_JOB with SHERD_JOB_START, and SLURM_JOB_ID
  /// ("slurm:ID", with SLURM_CLUSTER_NAME "slurm:CLUSTER:ID") with 1 + SLURM_RESTART_COUNT.
  /// JOB_COMPLETION_INDEX, of a Kubernetes pod, follows the job's name.
  static LockHolder of_this_process();
  /// Returns whether this is an earlier start of the run or job of `other`: then `other` may take the folder
  /// over.
  bool is_earlier_than(const LockHolder& other) const;
  /// Returns whether both belong to one run or job that does not count its starts: then a free flock suffices
  /// on any file system.
  bool is_like(const LockHolder& other) const;
};

/// Encode and decode the file's text; unreadable fields keep their defaults.
[[nodiscard]] std::string encode_lock(const LockHolder& holder);
[[nodiscard]] LockHolder decode_lock(std::string_view text);

/// Error: another process has taken the folder over, and this one may not save there any more. It is not an
/// IoError, since a retry cannot succeed.
class LostFolder : public Error {
 public:
  using Error::Error;
};

/// Lock of the one process that may save in a folder, held until destroyed or until the process ends. One
/// thread at a time uses it.
///
/// Two mechanisms exclude others. flock on the file keeps them from starting: the system releases it when its
/// holder ends in any way. The attempt number in the file fences off a holder that is suspended, or on an
/// unreachable host. A later start of the same `sherd run`, or of the same job of a batch system, takes the
/// folder over from an earlier one (LockHolder::is_earlier_than()). It replaces the old file by a new one,
/// and the old holder detects this before it commits anything (require()).
class [[nodiscard]] SaveLock {
 public:
  /// Takes the lock of `folder`, which exists. `temporary` returns names in it for a file that becomes the
  /// lock by one rename. `name` is the lock's own: a name other than "lock" guards something else there.
  /// @throws IoError that names the holder, when it is not this run's own earlier start; LostFolder when
  /// another process took it meanwhile.
  SaveLock(std::filesystem::path folder, FileSystem& files, LockHolder self,
           std::function<std::filesystem::path()> temporary, std::string_view name = "lock");
  ~SaveLock();
  SaveLock(const SaveLock&) = delete;
  SaveLock& operator=(const SaveLock&) = delete;

  uint64_t attempt() const { return self_.attempt; }
  /// Reads the file and checks that it is still this holder's.
  /// @throws LostFolder otherwise, with both attempts, ending with `what` ("'DIR/step_00000010' is not
  /// committed").
  /// @throws IoError when it cannot be read.
  void require(const std::string& what) const;

 private:
  LockHolder read() const;
  std::unique_ptr<FileLock> acquire(LockHolder& before);
  void replace(const std::string& before);

  std::filesystem::path folder_, path_;
  FileSystem& files_;
  LockHolder self_;
  std::function<std::filesystem::path()> temporary_;
  std::unique_ptr<FileLock> lock_;
};

}  // namespace sherd
