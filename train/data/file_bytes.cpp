#include <sherd/train/data/file_bytes.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sherd/base/error.h>
#include <sherd/base/printable.h>
#include <sherd/checkpoint/files/file_system.h>

namespace sherd {
namespace {

namespace fs = std::filesystem;

std::string reason(int error) { return std::system_category().message(error); }

[[noreturn]] void fail_shorter(const fs::path& path, int64_t now, int64_t before) {
  throw IoError(
      fmt::format("the data file '{}' has {} bytes now and had {} when it was opened; data must not change "
                  "while it is trained on: restore the file and resume from the latest checkpoint",
                  printable(path.string(), PATH_MAX), now, before));
}

class Descriptor {
 public:
  explicit Descriptor(const fs::path& path)
      : number_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (number_ == -1)
      throw IoError(fmt::format("cannot open '{}': {}", printable(path.string(), PATH_MAX), reason(errno)));
  }
  ~Descriptor() { ::close(number_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }

 private:
  int number_;
};

class MappedFile : public FileBytes {
 public:
  explicit MappedFile(fs::path path) : path_(std::move(path)) {
    const Descriptor file(path_);
    if (::fstat(file.get(), &status_) == -1)
      throw IoError(
          fmt::format("cannot examine '{}': {}", printable(path_.string(), PATH_MAX), reason(errno)));
    if (S_ISDIR(status_.st_mode))
      throw IoError(fmt::format("cannot read '{}': {}", printable(path_.string(), PATH_MAX), reason(EISDIR)));
    if (!S_ISREG(status_.st_mode))
      throw IoError(fmt::format("cannot read '{}': not a regular file", printable(path_.string(), PATH_MAX)));
    if (status_.st_size == 0) return;  // nothing that could be mapped
    void* const at = ::mmap(nullptr, static_cast<size_t>(status_.st_size), PROT_READ, MAP_SHARED, file.get(),
                            /*offset=*/0);
    if (at == MAP_FAILED)
      throw IoError(
          fmt::format("cannot map '{}' ({} bytes) into memory: {}; the limits are those of address space "
                      "(ulimit -v) and of mappings (sysctl vm.max_map_count)",
                      printable(path_.string(), PATH_MAX), status_.st_size, reason(errno)));
    data_ = static_cast<const char*>(at);
  }
  ~MappedFile() override {
    if (data_ != nullptr) ::munmap(const_cast<char*>(data_), static_cast<size_t>(status_.st_size));
  }

  const fs::path& path() const override { return path_; }
  int64_t size() const override { return status_.st_size; }

  void read(int64_t offset, void* to, int64_t bytes) const override {
    // A mapping outlives its file's name; another file of that name says nothing about it.
    struct stat now;
    if (::stat(path_.c_str(), &now) == 0 && now.st_dev == status_.st_dev && now.st_ino == status_.st_ino &&
        now.st_size < status_.st_size)
      fail_shorter(path_, now.st_size, status_.st_size);
    if (bytes > 0) std::memcpy(to, data_ + offset, static_cast<size_t>(bytes));
  }

 private:
  fs::path path_;
  struct stat status_ {};
  const char* data_ = nullptr;
};

class FileOpenedOnUse : public FileBytes {
 public:
  explicit FileOpenedOnUse(fs::path path)
      : path_(std::move(path)), size_(FileSystem::posix().open(path_)->size()) {}

  const fs::path& path() const override { return path_; }
  int64_t size() const override { return size_; }

  void read(int64_t offset, void* to, int64_t bytes) const override {
    const std::unique_ptr<ReadableFile> file = FileSystem::posix().open(path_);
    if (const int64_t now = file->size(); now < size_) fail_shorter(path_, now, size_);
    file->read_at(offset, to, bytes);
  }

 private:
  fs::path path_;
  int64_t size_;
};

}  // namespace

std::shared_ptr<const FileBytes> FileBytes::map(const fs::path& path) {
  return std::make_shared<const MappedFile>(path);
}

std::shared_ptr<const FileBytes> FileBytes::open_on_use(const fs::path& path) {
  return std::make_shared<const FileOpenedOnUse>(path);
}

}  // namespace sherd
