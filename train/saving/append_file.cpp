#include <sherd/train/saving/append_file.h>

#include <cerrno>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sherd/base/error.h>

namespace sherd {
namespace {

constexpr size_t kMostWaiting = size_t{16} << 20;

}  // namespace

AppendFile::AppendFile(std::string path, const char* what, const char* record, bool keep,
                       const std::function<bool()>& takes_over)
    : path_(std::move(path)), what_(what), record_(record) {
  for (;;) {
    open(path_, "ae");
    struct stat opened, named;
    if (::fstat(::fileno(file_.get()), &opened) == -1) fail();
    if (!S_ISREG(opened.st_mode)) return;
    if (!lock()) {
      if (takes_over && takes_over()) {
        take_over(keep);
        return;
      }
      throw IoError(fmt::format(
          "cannot write the {} '{}': another run writes them there; stop that run, or name another file",
          what_, path_));
    }
    // Otherwise the name was moved to a copy since the file was opened, and the lock on this one has no
    // effect.
    if (::stat(path_.c_str(), &named) == 0 && named.st_dev == opened.st_dev && named.st_ino == opened.st_ino)
      break;
  }
  // Only now: it may have been another run's.
  if (!keep && ::ftruncate(::fileno(file_.get()), 0) == -1) fail();
}

void AppendFile::open(const std::string& path, const char* mode) {
  file_.reset(std::fopen(path.c_str(), mode));
  if (!file_) fail();
}

// Locks the file; returns false if another process holds it, as far as the file system reports.
bool AppendFile::lock() {
  return ::flock(::fileno(file_.get()), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

void AppendFile::take_over(bool keep) {
  std::error_code error;
  const std::filesystem::path target =
      std::filesystem::canonical(path_, error);  // of a link, what it stands for
  const std::string made =
      fmt::format("{}.tmp-{:08x}", target.string(), static_cast<uint32_t>(std::random_device()()));
  const auto check = [&] {
    if (!error) return;
    std::error_code ignored;
    std::filesystem::remove(made, ignored);
    errno = error.value();
    fail();
  };
  if (!error && keep) std::filesystem::copy_file(target, made, error);
  check();
  open(made, !error && keep ? "ae" : "aex");  // nothing that has the name already
  lock();                                     // before the rename: it is always locked under its name
  std::filesystem::rename(made, target, error);
  check();
}

void AppendFile::fail() const {
  throw IoError(
      fmt::format("cannot write the {} '{}': {}", what_, path_, std::system_category().message(errno)));
}

void AppendFile::write_head(std::string_view head) {
  waiting_ += head;
  if (!write_waiting()) fail();
}

void AppendFile::write(std::string_view record) {
  if (waiting_.size() + record.size() > kMostWaiting && !write_waiting()) {
    ++records_lost_;
    return;
  }
  waiting_ += record;
  ++records_waiting_;
  flush();
}

void AppendFile::flush() {
  if (!waiting_.empty()) write_waiting();
}

// All of it, or as if nothing had been tried.
bool AppendFile::write_waiting() {
  const int file = ::fileno(file_.get());
  struct stat before;
  const bool regular = ::fstat(file, &before) == 0 && S_ISREG(before.st_mode);
  size_t written = 0;
  while (written < waiting_.size()) {
    const ssize_t n = ::write(file, waiting_.data() + written, waiting_.size() - written);
    if (n >= 0) {
      written += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      error_ = errno;
      if (!regular || ::ftruncate(file, before.st_size) == -1) waiting_.erase(0, written);
      errno = error_;
      return false;
    }
  }
  waiting_.clear();
  records_waiting_ = 0;
  return true;
}

std::string AppendFile::failure() const {
  const int64_t missing = records_waiting_ + records_lost_;
  if (missing == 0) return "";
  return fmt::format("cannot write the {} '{}': {}; {} {}{} missing in it", what_, path_,
                     std::system_category().message(error_), missing, record_,
                     missing == 1 ? " is" : "s are");
}

}  // namespace sherd
