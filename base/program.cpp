#include <sherd/base/program.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <new>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <sherd/base/printable.h>

namespace sherd {

namespace {

// Returns whether the path is the dynamic loader. If it started the program (ld-linux-x86-64.so.2 PROGRAM),
// the link names the loader, which would take the program's arguments for its own.
bool is_loader(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return name.starts_with("ld-") || name.starts_with("ld.") || name.starts_with("ld64.");
}

// Where the signal would end the program: by a handler, which exec() resets. SIG_IGN would pass to the
// programs that this one starts.
void fail_calls_instead_of(int signal) {
  struct sigaction before = {};
  if (::sigaction(signal, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) return;
  struct sigaction action = {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void bound_spinning(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  if (::setenv("GOMP_SPINCOUNT", "1000", 0) != 0) return;
  // The program's own name, which process lists show, is preferred. The link is used where that is gone
  // (replaced while it ran).
  constexpr const char* kSelf = "/proc/self/exe";
  char path[PATH_MAX + 1];
  const ssize_t length = ::readlink(kSelf, path, PATH_MAX);
  if (length > 0) {
    path[length] = '\0';
    if (is_loader(path)) return;
    ::execv(path, argv);
  }
  ::execv(kSelf, argv);
}

void reserve_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
    ::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);  // takes the smallest free number
  }
}

void report_file_size_limit() { fail_calls_instead_of(SIGXFSZ); }

void report_broken_pipes() { fail_calls_instead_of(SIGPIPE); }

bool stdout_has_reader() {
  pollfd output{STDOUT_FILENO, 0, 0};
  return ::poll(&output, 1, 0) <= 0 || (output.revents & (POLLERR | POLLHUP)) == 0;
}

void print_error(const std::string& program, const std::string& text) noexcept {
  // One write, as far as it goes, so that lines of several processes stay whole.
  try {
    const std::string line = fmt::format("{}: {}\n", program, printable_lines(text));
    std::fwrite(line.data(), 1, line.size(), stderr);
  } catch (const std::bad_alloc&) {
    std::fwrite(text.data(), 1, text.size(), stderr);
  }
}

bool finish_stdout(const char* program) {
  errno = 0;
  std::cout.flush();
  const bool flushed = std::fflush(stdout) == 0;
  const int error = errno;
  if (flushed && std::ferror(stdout) == 0 && std::cout.good()) return true;
  print_error(program, fmt::format("the output could not be written{}; is the disk full, or the reader gone?",
                                   error == 0 ? "" : ": " + std::system_category().message(error)));
  return false;
}

}  // namespace sherd
