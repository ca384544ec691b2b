// Lock of a save folder: the file `lock` (FORMAT.md, section 2).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <sherd/checkpoint/files/file_system.h>
#include <sherd/kernels/device/error.h>

namespace sherd {

/// What the lock file says of the process that holds, or held, it.
struct LockHolder {
  /// The fence: each process that takes the folder has one more than the one before.
  uint64_t attempt = 0;
  /// 16 hexadecimal digits, drawn anew by each that takes the folder.
  std::string token = {};
  std::string host = {};
  int64_t process = 0;
  /// UTC, "2026-11-23T08:15:00Z".
  std::string since = {};
  /// Its command line, at most 400 bytes of it, in one line.
  std::string command = {};
  /// Of a run that `sherd run` supervises: the supervisor's mark, and which of its starts this is (from 1).
  std::string run = {};
  uint64_t start = 0;
  /// Of a job of a batch system: its name, and which of its starts this is (0: not known). A job that is requeued keeps
  /// the name.
  std::string job = {};
  uint64_t job_start = 0;
  /// It has ended in an orderly way; only written where locks of other hosts may not be seen.
  bool released = false;

  /// "attempt 7 (process 4711 on node1, since 2026-11-23T08:15:00Z, 'train_gpt --save out')".
  std::string describe() const;
  /// The calling process. `run` and `start` are the environment's SHERD_RUN and SHERD_RUN_START; `job` and `job_start`
  /// the first that is set of SHERD_JOB with SHERD_JOB_START, and SLURM_JOB_ID ("slurm:ID", with SLURM_CLUSTER_NAME
  /// "slurm:CLUSTER:ID") with 1 + SLURM_RESTART_COUNT. JOB_COMPLETION_INDEX, of a Kubernetes pod, follows the job's name.
  static LockHolder of_this_process();
  /// Whether this is an earlier start of the run or the job of `other`: then `other` may take the folder from it.
  bool is_earlier_than(const LockHolder& other) const;
  /// Whether both are of one run or job that does not count its starts: then a free flock is believed, wherever it is.
  bool is_like(const LockHolder& other) const;
};

/// The file's text, and back; whatever cannot be read of it keeps its default.
std::string encode_lock(const LockHolder& holder);
LockHolder decode_lock(std::string_view text);

/// Another process has taken the folder over: this one may not save there any more. No IoError, for trying
/// again is no use.
class LostFolder : public Error {
 public:
  using Error::Error;
};

/// Held by the one process that may save in a folder, until destroyed, also by the process's end. Used by one
/// thread at a time.
///
/// Two things keep others out. flock on the file keeps them from beginning: the system gives it back when its
/// holder ends, however it ends. The attempt's number in the file fences off a holder that is not dead but
/// stopped, or on a host that does not answer any more: a later start of the same `sherd run`, or of the same job of a
/// batch system, takes the folder over from the one before (LockHolder::is_earlier_than()). It puts a new file in the
/// place of the old one, and the old holder finds out before it commits anything (require()).
class SaveLock {
 public:
  /// Takes the lock of `folder`, which is there. `temporary` makes up names in it for a file that becomes the
  /// lock by one rename. `name` is the lock's own: another than "lock" guards something else there.
  /// @throws IoError that names the holder, when it is not this run's own earlier start; LostFolder when
  /// somebody else took it meanwhile.
  SaveLock(std::filesystem::path folder, FileSystem& files, LockHolder self,
           std::function<std::filesystem::path()> temporary, std::string_view name = "lock");
  ~SaveLock();
  SaveLock(const SaveLock&) = delete;
  SaveLock& operator=(const SaveLock&) = delete;

  uint64_t attempt() const { return self_.attempt; }
  /// Reads the file. @throws LostFolder with both attempts, unless it is still this holder's; it ends with
  /// `what` ("'DIR/step_00000010' is not committed"). @throws IoError when it cannot be read.
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
