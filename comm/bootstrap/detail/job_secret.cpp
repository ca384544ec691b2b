#include <sherd/comm/bootstrap/detail/job_secret.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <sherd/base/error.h>

namespace sherd {
namespace {

constexpr const char* kValue = "SHERD_JOB_SECRET";
constexpr const char* kFile = "SHERD_JOB_SECRET_FILE";

class File {
 public:
  // O_NONBLOCK: opening a FIFO would wait for its writer.
  explicit File(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw InvalidArgument(fmt::format("{} is {}: {}", kFile, path, why));
}

/// Checks the open file: its name may refer to another file by now.
void require_private(const std::string& path, const File& file) {
  struct stat s {};
  if (::fstat(file.fd(), &s) != 0) refuse(path, std::strerror(errno));
  if (!S_ISREG(s.st_mode)) refuse(path, "it is not a regular file; name one");
  if (s.st_uid != ::geteuid() && s.st_uid != 0)
    refuse(path,
           fmt::format("it belongs to user {}, not to user {} who runs this process; make a copy of your own",
                       s.st_uid, ::geteuid()));
  if ((s.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    refuse(path,
           fmt::format("others may read or write it (its mode is {:04o}); run `chmod 600 {}`, and choose "
                       "another secret if they could have read this one",
                       s.st_mode & 07777, path));
}

std::string read(const std::string& path) {
  const File file(path);
  if (file.fd() < 0) refuse(path, std::strerror(errno));
  require_private(path, file);
  std::string text(kMostSecret + 3, '\0');  // room for a line's end, and to see that there is more
  size_t there = 0;
  for (;;) {
    const ssize_t n = ::read(file.fd(), text.data() + there, text.size() - there);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) refuse(path, std::strerror(errno));
    if (n == 0) break;
    there += static_cast<size_t>(n);
  }
  text.resize(there);
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

}  // namespace

std::string job_secret(const std::function<const char*(const char*)>& get) {
  const char* const value = get(kValue);
  const char* const path = get(kFile);
  if (value && path)
    throw InvalidArgument(fmt::format("{} and {} are both set; unset one of them", kValue, kFile));
  if (!value && !path) return {};
  const char* const name = value ? kValue : kFile;
  if (*(value ? value : path) == '\0')
    throw InvalidArgument(fmt::format("{} is set and empty; give it a value, or unset it", name));
  std::string secret = value ? value : read(path);
  if (secret.empty() || secret.size() > kMostSecret)
    throw InvalidArgument(fmt::format(
        "the secret that {} gives has {} bytes; use 1 to {}, such as the output of `openssl rand -hex 32`",
        name, secret.size() > kMostSecret ? fmt::format("more than {}", kMostSecret) : "no", kMostSecret));
  return secret;
}

}  // namespace sherd
