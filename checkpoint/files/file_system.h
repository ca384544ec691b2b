// Files and folders behind one interface, so that tests can make any call fail.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace sherd {

/// File open for reading. Const methods are safe for concurrent use by several threads.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual const std::filesystem::path& path() const = 0;
  /// Returns the present size in bytes.
  virtual int64_t size() const = 0;
  /// Reads exactly `bytes` bytes from `offset`. @throws IoError also when the file ends before.
  virtual void read_at(int64_t offset, void* to, int64_t bytes) const = 0;
  /// Announces a read of this range, so that the system prefetches it. A hint; never throws.
  virtual void will_read(int64_t /*offset*/, int64_t /*bytes*/) const {}
};

/// New file, written from front to back by one thread. Its destructor closes without reporting errors.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual const std::filesystem::path& path() const = 0;
  /// Appends all bytes, in as many system calls as needed. After an IoError a part may be written.
  virtual void write(const void* from, int64_t bytes) = 0;
  /// Returns when the contents are on the medium.
  virtual void sync() = 0;
  virtual void close() = 0;
};

/// Lock, held until destroyed or until the process ends, even when it is killed.
class [[nodiscard]] FileLock {
 public:
  virtual ~FileLock() = default;
};

/// File system. Every failure is an IoError naming the operation, the path and the system's reason. Safe for
/// concurrent use by several threads. Outlives everything it opened.
class FileSystem {
 public:
  /// Returns the machine's file system; it lives as long as the program.
  static FileSystem& posix();
  virtual ~FileSystem() = default;

  /// Opens a file. @throws IoError when missing, unreadable or not a regular file (links are followed).
  [[nodiscard]] virtual std::unique_ptr<ReadableFile> open(const std::filesystem::path& path) = 0;
  /// Creates a file; returns null when the name exists. Permissions follow the umask.
  [[nodiscard]] virtual std::unique_ptr<WritableFile> create_new(const std::filesystem::path& path) = 0;
  /// Makes one folder. @returns false when it exists already and stays as it is.
  virtual bool create_folder(const std::filesystem::path& path) = 0;
  /// Renames in one step. At `to` a file replaces a file and a folder replaces an empty folder; no other
  /// folder may be there.
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  /// Exchanges two existing names in one step. @throws IoError also where the file system cannot.
  virtual void exchange(const std::filesystem::path& a, const std::filesystem::path& b) = 0;
  /// Returns when the folder's entries are on the medium (or the file system has no way to do that).
  virtual void sync_folder(const std::filesystem::path& path) = 0;
  /// Removes a file, or a folder with everything below it (links are not followed); does nothing when it is
  /// missing.
  virtual void remove_all(const std::filesystem::path& path) = 0;
  /// Returns the names in a folder, sorted.
  [[nodiscard]] virtual std::vector<std::string> list(const std::filesystem::path& path) = 0;
  /// Kind of the path's present target, links followed; `none` when missing.
  enum class Kind { none, file, folder, other };
  virtual Kind kind(const std::filesystem::path& path) = 0;
  /// Locks the file that has this name on return; a missing file is created, and the file is not removed.
  /// Returns null while another holder has it (in this process, too).
  [[nodiscard]] virtual std::unique_ptr<FileLock> lock(const std::filesystem::path& path) = 0;
  /// Locks an existing file or folder. Returns null while another holder has it, and when the path no longer
  /// names the locked object (it was removed or replaced meanwhile).
  [[nodiscard]] virtual std::unique_ptr<FileLock> lock_existing(const std::filesystem::path& path) = 0;
  /// Returns whether this host surely sees locks on files in this folder that processes of other hosts hold.
  /// True on a host's own disk, false on shared file systems, where flock may be local to each host.
  virtual bool sees_all_locks(const std::filesystem::path& folder);
};

/// Renames a file over another in the same folder and returns when the folder is on the medium.
void rename_durably(FileSystem& files, const std::filesystem::path& from, const std::filesystem::path& to);
/// Returns the whole contents. @throws IoError also for a file of more than `limit` bytes.
[[nodiscard]] std::string read_whole(FileSystem& files, const std::filesystem::path& path, int64_t limit);

}  // namespace sherd
