#include <sherd/checkpoint/file.h>

#include <cerrno>
#include <cstdio>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sherd/kernels/error.h>

namespace sherd {
namespace {

[[noreturn]] void fail(std::string_view what, const std::filesystem::path& path, int error) {
  throw IoError(
      fmt::format("cannot {} '{}': {}", what, path.string(), std::system_category().message(error)));
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

}  // namespace

File File::open_to_read(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a named pipe by mistake must not wait for a writer. Regular files ignore it.
  const int descriptor = retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
  if (descriptor == -1) fail("open", path, errno);
  File file(descriptor, path);
  struct stat status;
  if (::fstat(descriptor, &status) == -1) fail("examine", path, errno);
  if (S_ISDIR(status.st_mode)) fail("read", path, EISDIR);
  if (!S_ISREG(status.st_mode))
    throw IoError(fmt::format("cannot read '{}': not a regular file", path.string()));
  return file;
}

std::optional<File> File::create_new(const std::filesystem::path& path) {
  const int descriptor =
      retry([&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
  if (descriptor == -1 && errno == EEXIST) return std::nullopt;
  if (descriptor == -1) fail("create", path, errno);
  return File(descriptor, path);
}

File::File(File&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (descriptor_ != -1) ::close(descriptor_);
}

int64_t File::size() const {
  struct stat status;
  if (::fstat(descriptor_, &status) == -1) fail("examine", path_, errno);
  return status.st_size;
}

void File::read_at(int64_t offset, void* to, int64_t bytes) const {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t got = retry([&] {
      return ::pread(descriptor_, static_cast<char*>(to) + done, static_cast<size_t>(bytes - done),
                     offset + done);
    });
    if (got == -1) fail("read", path_, errno);
    if (got == 0) {
      throw IoError(fmt::format("cannot read '{}': it ends at byte {}, before byte {}", path_.string(),
                                offset + done, offset + bytes));
    }
    done += got;
  }
}

void File::write(const void* from, int64_t bytes) {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t put = retry([&] {
      return ::write(descriptor_, static_cast<const char*>(from) + done, static_cast<size_t>(bytes - done));
    });
    if (put == -1) fail("write", path_, errno);
    done += put;
  }
}

void File::sync() {
  if (retry([&] { return ::fsync(descriptor_); }) == -1) fail("sync", path_, errno);
}

void File::close() {
  // Not retried: after EINTR the descriptor is gone on Linux.
  if (::close(std::exchange(descriptor_, -1)) == -1 && errno != EINTR) fail("close", path_, errno);
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (std::rename(from.c_str(), to.c_str()) == -1) {
    fail(fmt::format("rename '{}' to", from.string()), to, errno);
  }
  const std::filesystem::path folder = to.has_parent_path() ? to.parent_path() : ".";
  const int descriptor = retry([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (descriptor == -1) fail("open", folder, errno);
  const int error = retry([&] { return ::fsync(descriptor); }) == -1 ? errno : 0;
  ::close(descriptor);
  // EINVAL: this file system has no way to sync a folder; the rename is all it offers.
  if (error != 0 && error != EINVAL) fail("sync", folder, error);
}

}  // namespace sherd
