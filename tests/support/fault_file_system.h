// File system that fails, returns wrong data and crashes on demand.
#pragma once

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/checkpoint/files/file_system.h>

/// Calls that change something, in the order of FaultFileSystem's names for them.
enum class FileCall {
  create_new,
  write,
  sync,
  close,
  create_folder,
  rename,
  exchange,
  sync_folder,
  remove_all,
  lock
};
const char* name_of(FileCall call);

/// A changing call that was made, or tried.
struct SeenCall {
  FileCall call = FileCall::write;
  std::filesystem::path path;
  std::filesystem::path other;  // the second path of rename and exchange
  std::string to_string() const;
};

/// A fault and the changing call that it strikes.
struct FileFault {
  enum class Effect {
    error,        // nothing is done
    short_write,  // half of a write reaches the file; other calls: as error
    crash         // half of a write or removal happens; this call and all later ones fail, reading included
  };
  Effect effect = Effect::error;
  int error = EIO;
  /// The fault strikes the call of this number, from 0, among those that `only` and `path` let through ...
  size_t at = 0;
  std::optional<FileCall> only = std::nullopt;
  std::string path = {};  // a part of the call's path (or either path)
  /// ... and, if set, all later ones of them: a disk that stays full.
  bool again = false;
};

/// Data that a crash loses, among those that no sync has made durable.
enum class Loss {
  nothing,  // only the process ended: the machine runs on, and a later crash may still lose it
  all,      // all bytes of files, all new names; all renames are undone
  some,     // a random part of each file's end; the last few, a random number, of the new names and renames
  zeros,    // as some, but the files keep their lengths: zeros stand for the bytes
};
constexpr Loss kLosses[] = {Loss::nothing, Loss::all, Loss::some, Loss::zeros};

/// Passes every call on to another file system, whose paths are the machine's, unless a fault strikes. Counts
/// and records the changing calls, and keeps account of what is durable: bytes after a file's sync(), names
/// and renames after sync_folder() of the folder they are in. (A removal counts as durable at once, so that
/// code that removes something before the rename it relies on is durable loses it.) Safe from several
/// threads at once, one call at a time.
class FaultFileSystem : public sherd::FileSystem {
 public:
  explicit FaultFileSystem(sherd::FileSystem& base = sherd::FileSystem::posix()) : base_(base) {}

  /// Drops the recorded calls and every fault.
  void reset();
  /// The same, and sets a fault: numbers count from here.
  void arm(FileFault fault);
  /// Returns whether the fault has struck.
  bool struck() const;
  std::vector<SeenCall> calls() const;
  /// Leaves the state after a crash; then calls work again. No file is open for writing or used any more.
  void lose_unsynced(Loss loss, uint64_t seed = 0);

  /// Faults of reading, for files whose path contains `path`; reset() ends them.
  void flip_bit(std::string path, int64_t offset, int bit = 0);
  void fail_reads(std::string path, int error = EIO);

  std::unique_ptr<sherd::ReadableFile> open(const std::filesystem::path& path) override;
  std::unique_ptr<sherd::WritableFile> create_new(const std::filesystem::path& path) override;
  bool create_folder(const std::filesystem::path& path) override;
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  void exchange(const std::filesystem::path& a, const std::filesystem::path& b) override;
  void sync_folder(const std::filesystem::path& path) override;
  void remove_all(const std::filesystem::path& path) override;
  std::vector<std::string> list(const std::filesystem::path& path) override;
  Kind kind(const std::filesystem::path& path) override;
  std::unique_ptr<sherd::FileLock> lock(const std::filesystem::path& path) override;
  std::unique_ptr<sherd::FileLock> lock_existing(const std::filesystem::path& path) override {
    check_alive("lock", path);
    return base_.lock_existing(path);
  }

 private:
  class Readable;
  class Writable;
  struct FileState {
    std::filesystem::path path;
    int64_t written = 0, synced = 0;
  };
  /// A change of names that is not durable. Paths follow later renames.
  struct Change {
    FileCall call;  // create_new (of a file or folder), rename or exchange
    std::filesystem::path path, other;
    std::optional<std::string> replaced = std::nullopt;  // contents of the file that a rename replaced
  };
  struct ReadFault {
    std::string path;
    int error = 0;
    int64_t offset = 0;
    int bit = 0;
  };

  /// Counts a call; does it, or does it partly and throws.
  template <class Whole, class Part>
  auto change(FileCall call, const std::filesystem::path& path, const std::filesystem::path& other,
              Whole whole, Part part);
  void check_alive(std::string_view what, const std::filesystem::path& path) const;
  void follow_rename(size_t changes, const std::filesystem::path& from, const std::filesystem::path& to);
  void follow_exchange(size_t changes, const std::filesystem::path& a, const std::filesystem::path& b);
  void undo(const Change& change);
  void forget_below(const std::filesystem::path& path);

  sherd::FileSystem& base_;
  mutable std::mutex mutex_;
  std::vector<SeenCall> calls_;
  std::optional<FileFault> fault_;
  size_t matching_ = 0;
  bool struck_ = false, crashed_ = false;
  std::vector<ReadFault> read_faults_;
  std::vector<std::shared_ptr<FileState>> written_;
  std::vector<Change> changes_;
};
