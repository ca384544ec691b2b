// Files and folders behind one interface, so that tests can make any call fail.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace sherd {

/// A file open for reading. Const methods are safe from several threads at once.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual const std::filesystem::path& path() const = 0;
  /// Bytes in the file now.
  virtual int64_t size() const = 0;
  /// Reads exactly `bytes` bytes from `offset` on. @throws IoError also when the file ends before.
  virtual void read_at(int64_t offset, void* to, int64_t bytes) const = 0;
  /// Announces a read of this range, so that the system fetches it meanwhile. A hint; never throws.
  virtual void will_read(int64_t /*offset*/, int64_t /*bytes*/) const {}
};

/// A new file, written from front to back by one thread. Its destructor closes without reporting.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual const std::filesystem::path& path() const = 0;
  /// Appends all of it, however many system calls that takes. After an IoError part of it may be there.
  virtual void write(const void* from, int64_t bytes) = 0;
  /// Returns when the contents are on the medium.
  virtual void sync() = 0;
  virtual void close() = 0;
};

/// Held until destroyed, also when the process is killed.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

/// Every failure is an IoError naming the operation, the path and the system's reason. Safe from several
/// threads at once. Outlives everything it opened.
class FileSystem {
 public:
  /// The machine's own; lives as long as the program.
  static FileSystem& posix();
  virtual ~FileSystem() = default;

  /// @throws IoError when missing, unreadable or not a regular file (links are followed).
  virtual std::unique_ptr<ReadableFile> open(const std::filesystem::path& path) = 0;
  /// Creates a file; null when the name is taken. Permissions follow the umask.
  virtual std::unique_ptr<WritableFile> create_new(const std::filesystem::path& path) = 0;
  /// One folder. @returns whether it was made: false when one is there already, which stays as it is.
  virtual bool create_folder(const std::filesystem::path& path) = 0;
  /// In one step. At `to` a file is replaced by a file and an empty folder by a folder; no other folder may
  /// be there.
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  /// Both names exist and change places in one step. @throws IoError also where the file system cannot.
  virtual void exchange(const std::filesystem::path& a, const std::filesystem::path& b) = 0;
  /// Returns when the folder's entries are on the medium (or the file system has no way to do that).
  virtual void sync_folder(const std::filesystem::path& path) = 0;
  /// A file, or a folder with all below it (links are not followed); nothing happens when it is missing.
  virtual void remove_all(const std::filesystem::path& path) = 0;
  /// Names in a folder, sorted.
  virtual std::vector<std::string> list(const std::filesystem::path& path) = 0;
  /// What is there now, links followed; `none` when missing.
  enum class Kind { none, file, folder, other };
  virtual Kind kind(const std::filesystem::path& path) = 0;
  /// The lock on the file that has this name when it returns; the file is created if missing, and not removed.
  /// Null while another holds it (this process included).
  virtual std::unique_ptr<FileLock> lock(const std::filesystem::path& path) = 0;
  /// The lock on a file or folder that is there; null while another holds it, and when the path no longer
  /// names what was locked (it was removed or replaced meanwhile).
  virtual std::unique_ptr<FileLock> lock_existing(const std::filesystem::path& path) = 0;
  /// Whether locks on files in this folder that processes of other hosts hold are surely seen here: true on a
  /// host's own disk, false on file systems that hosts share, where flock may be each host's own affair.
  virtual bool sees_all_locks(const std::filesystem::path& folder);
};

/// Renames a file over another in the same folder and returns when the folder is on the medium.
void rename_durably(FileSystem& files, const std::filesystem::path& from, const std::filesystem::path& to);
/// The whole contents. @throws IoError also for a file of more than `limit` bytes.
std::string read_whole(FileSystem& files, const std::filesystem::path& path, int64_t limit);

}  // namespace sherd
