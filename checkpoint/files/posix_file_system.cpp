#include <sherd/checkpoint/files/file_system.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <sherd/base/error.h>
#include <sherd/base/printable.h>

namespace sherd {
namespace {

namespace fs = std::filesystem;

// f_type of statfs(2) of file systems that several hosts mount at once: NFS, SMB (twice), Ceph, Lustre, GPFS,
// BeeGFS, AFS (twice), OCFS2, GFS2, 9P, FUSE (which may be anything).
constexpr uint32_t kSharedFileSystems[] = {0x6969,     0xff534d42, 0xfe534d42, 0x00c36400, 0x0bd00bd0,
                                           0x47504653, 0x19830326, 0x5346414f, 0x6b414653, 0x7461636f,
                                           0x01161970, 0x01021997, 0x65735546};

[[noreturn]] void fail(std::string_view what, const fs::path& path, int error) {
  throw IoError(fmt::format("cannot {} '{}': {}", what, printable(path.string(), PATH_MAX),
                            std::system_category().message(error)));
}

/// Repeats a system call that a signal interrupted.
template <class Call>
auto retry(Call call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result == -1 && errno == EINTR);
  return result;
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  ~Descriptor() {
    if (number_ != -1) ::close(number_);
  }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

int64_t size_of_file(const Descriptor& file, const fs::path& path) {
  struct stat status;
  if (::fstat(file.get(), &status) == -1) fail("examine", path, errno);
  return status.st_size;
}

class PosixReadableFile : public ReadableFile {
 public:
  PosixReadableFile(Descriptor descriptor, fs::path path)
      : descriptor_(std::move(descriptor)), path_(std::move(path)) {}

  const fs::path& path() const override { return path_; }
  int64_t size() const override { return size_of_file(descriptor_, path_); }

  void read_at(int64_t offset, void* to, int64_t bytes) const override {
    for (int64_t done = 0; done < bytes;) {
      const ssize_t got = retry([&] {
        return ::pread(descriptor_.get(), static_cast<char*>(to) + done, static_cast<size_t>(bytes - done),
                       offset + done);
      });
      if (got == -1) fail("read", path_, errno);
      if (got == 0) {
        throw IoError(fmt::format("cannot read '{}': it ends at byte {}, before byte {}",
                                  printable(path_.string(), PATH_MAX), offset + done, offset + bytes));
      }
      done += got;
    }
  }

  void will_read(int64_t offset, int64_t bytes) const override {
    ::posix_fadvise(descriptor_.get(), offset, bytes, POSIX_FADV_WILLNEED);
  }

 private:
  Descriptor descriptor_;
  fs::path path_;
};

class PosixWritableFile : public WritableFile {
 public:
  PosixWritableFile(Descriptor descriptor, fs::path path)
      : descriptor_(std::move(descriptor)), path_(std::move(path)) {}

  const fs::path& path() const override { return path_; }

  void write(const void* from, int64_t bytes) override {
    for (int64_t done = 0; done < bytes;) {
      const ssize_t put = retry([&] {
        return ::write(descriptor_.get(), static_cast<const char*>(from) + done,
                       static_cast<size_t>(bytes - done));
      });
      if (put == -1) fail("write", path_, errno);
      done += put;
    }
  }

  void sync() override {
    if (retry([&] { return ::fsync(descriptor_.get()); }) == -1) fail("sync", path_, errno);
  }

  void close() override {
    // Not retried: after EINTR the descriptor is gone on Linux.
    if (::close(descriptor_.release()) == -1 && errno != EINTR) fail("close", path_, errno);
  }

 private:
  Descriptor descriptor_;
  fs::path path_;
};

/// Closing the descriptor gives the lock back; the system does so when the process ends.
class PosixFileLock : public FileLock {
 public:
  explicit PosixFileLock(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

 private:
  Descriptor descriptor_;
};

class PosixFileSystem : public FileSystem {
 public:
  std::unique_ptr<ReadableFile> open(const fs::path& path) override {
    // O_NONBLOCK: opening a named pipe by mistake must not wait for a writer. Regular files ignore it.
    Descriptor file(retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
    if (file.get() == -1) fail("open", path, errno);
    struct stat status;
    if (::fstat(file.get(), &status) == -1) fail("examine", path, errno);
    if (S_ISDIR(status.st_mode)) fail("read", path, EISDIR);
    if (!S_ISREG(status.st_mode))
      throw IoError(fmt::format("cannot read '{}': not a regular file", printable(path.string(), PATH_MAX)));
    return std::make_unique<PosixReadableFile>(std::move(file), path);
  }

  std::unique_ptr<WritableFile> create_new(const fs::path& path) override {
    Descriptor file(
        retry([&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); }));
    if (file.get() == -1 && errno == EEXIST) return nullptr;
    if (file.get() == -1) fail("create", path, errno);
    return std::make_unique<PosixWritableFile>(std::move(file), path);
  }

  bool create_folder(const fs::path& path) override {
    if (::mkdir(path.c_str(), 0777) == 0) return true;
    const int error = errno;
    if (error != EEXIST || kind(path) != Kind::folder) fail("create the folder", path, error);
    return false;
  }

  void rename(const fs::path& from, const fs::path& to) override {
    if (std::rename(from.c_str(), to.c_str()) == -1) {
      fail(fmt::format("rename '{}' to", from.string()), to, errno);
    }
  }

  void exchange(const fs::path& a, const fs::path& b) override {
    if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return;
    const int error = errno;
    if (error == EINVAL || error == ENOSYS || error == EOPNOTSUPP) {
      throw IoError(fmt::format(
          "cannot exchange '{}' and '{}': this file system cannot exchange two names in one step ({}); "
          "remove or rename '{}', or save in another folder",
          a.string(), b.string(), std::system_category().message(error), b.string()));
    }
    fail(fmt::format("exchange '{}' and", a.string()), b, error);
  }

  void sync_folder(const fs::path& path) override {
    const Descriptor folder(retry([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (folder.get() == -1) fail("open the folder", path, errno);
    // EINVAL: this file system has no way to sync a folder.
    if (retry([&] { return ::fsync(folder.get()); }) == -1 && errno != EINVAL) {
      fail("sync the folder", path, errno);
    }
  }

  void remove_all(const fs::path& path) override {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) fail("remove", path, error.value());
  }

  std::vector<std::string> list(const fs::path& path) override {
    std::error_code error;
    std::vector<std::string> names;
    for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
      names.push_back(entry->path().filename().string());
    }
    if (error) fail("list the folder", path, error.value());
    std::sort(names.begin(), names.end());
    return names;
  }

  Kind kind(const fs::path& path) override {
    struct stat status;
    if (::stat(path.c_str(), &status) == -1) {
      if (errno == ENOENT || errno == ENOTDIR) return Kind::none;
      fail("examine", path, errno);
    }
    if (S_ISREG(status.st_mode)) return Kind::file;
    return S_ISDIR(status.st_mode) ? Kind::folder : Kind::other;
  }

  std::unique_ptr<FileLock> lock(const fs::path& path) override {
    for (;;) {
      Descriptor file(
          retry([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666); }));
      if (file.get() == -1) fail("open the lock file", path, errno);
      if (retry([&] { return ::flock(file.get(), LOCK_EX | LOCK_NB); }) == -1) {
        if (errno == EWOULDBLOCK) return nullptr;
        fail("lock", path, errno);
      }
      struct stat locked, named;
      if (::fstat(file.get(), &locked) == -1) fail("examine", path, errno);
      const bool there = ::stat(path.c_str(), &named) == 0;
      if (!there && errno != ENOENT) fail("examine", path, errno);
      // Otherwise another file has taken the name since it was opened, and the lock on this one means nothing.
      if (there && locked.st_dev == named.st_dev && locked.st_ino == named.st_ino)
        return std::make_unique<PosixFileLock>(std::move(file));
    }
  }

  std::unique_ptr<FileLock> lock_existing(const fs::path& path) override {
    Descriptor file(
        retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW); }));
    if (file.get() == -1 && errno == ENOENT) return nullptr;
    if (file.get() == -1) fail("open", path, errno);
    if (retry([&] { return ::flock(file.get(), LOCK_EX | LOCK_NB); }) == -1) {
      if (errno == EWOULDBLOCK) return nullptr;
      fail("lock", path, errno);
    }
    struct stat locked, named;
    if (::fstat(file.get(), &locked) == -1) fail("examine", path, errno);
    if (::lstat(path.c_str(), &named) == -1) {
      if (errno == ENOENT) return nullptr;
      fail("examine", path, errno);
    }
    if (locked.st_dev != named.st_dev || locked.st_ino != named.st_ino) return nullptr;
    return std::make_unique<PosixFileLock>(std::move(file));
  }

  bool sees_all_locks(const fs::path& folder) override {
    struct statfs status;
    if (retry([&] { return ::statfs(folder.c_str(), &status); }) == -1) fail("examine", folder, errno);
    const auto kind = static_cast<uint32_t>(status.f_type);
    return std::find(std::begin(kSharedFileSystems), std::end(kSharedFileSystems), kind) ==
           std::end(kSharedFileSystems);
  }
};

}  // namespace

FileSystem& FileSystem::posix() {
  static PosixFileSystem file_system;  // has no state
  return file_system;
}

}  // namespace sherd
