#include "run_processes.h"

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sherd/base/error.h>

namespace sherd::tools {
namespace {

// The parent of a process by /proc/PID/stat, whose second field, in parentheses, may hold anything; -1: gone.
pid_t parent_of(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string text;
  std::getline(file, text);
  const size_t name_ends = text.rfind(')');
  pid_t parent = -1;
  if (name_ends == text.npos || name_ends + 4 > text.size()) return -1;
  std::from_chars(text.data() + name_ends + 4, text.data() + text.size(), parent);
  return parent;
}

struct Pipe {
  int read = -1, write = -1;

  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) == -1)
      throw IoError(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
    read = ends[0], write = ends[1];
  }
  ~Pipe() {
    for (const int end : {read, write})
      if (end >= 0) ::close(end);
  }
  Pipe(const Pipe&) = delete;
};

}  // namespace

void adopt_orphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

sigset_t signal_set(const std::vector<int>& signals) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : signals) ::sigaddset(&set, signal);
  return set;
}

StartedProcess start_process(const std::vector<std::string>& command,
                             const std::map<std::string, std::string>& environment, const sigset_t& blocked) {
  Pipe output, error_output;
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == -1) throw IoError(fmt::format("cannot start '{}': {}", command[0], std::strerror(errno)));
  if (child > 0) return {child, std::exchange(output.read, -1), std::exchange(error_output.read, -1)};
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  ::dup2(output.write, STDOUT_FILENO);
  ::dup2(error_output.write, STDERR_FILENO);
  if (const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC); nothing >= 0)
    ::dup2(nothing, STDIN_FILENO);
  ::sigprocmask(SIG_SETMASK, &blocked, nullptr);
  for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execvp(words[0], words.data());
  const std::string text = fmt::format("cannot start '{}': {}\n", command[0], std::strerror(errno));
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) ::_exit(126);
  ::_exit(127);
}

std::vector<pid_t> descendants() {
  std::map<pid_t, std::vector<pid_t>> children;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    pid_t process = 0;
    const auto [stop, wrong] = std::from_chars(name.data(), name.data() + name.size(), process);
    if (wrong == std::errc() && stop == name.data() + name.size())
      children[parent_of(process)].push_back(process);
  }
  std::vector<pid_t> below = {::getpid()};
  for (size_t i = 0; i < below.size(); ++i) {
    const auto found = children.find(below[i]);
    if (found != children.end()) below.insert(below.end(), found->second.begin(), found->second.end());
  }
  below.erase(below.begin());
  return below;
}

bool end_descendants(std::chrono::milliseconds longest) {
  const auto until = std::chrono::steady_clock::now() + longest;
  for (;;) {
    // Again and again: a process may start another while it is looked at.
    for (const pid_t process : descendants()) ::kill(process, SIGKILL);
    pid_t ended = 0;
    do {
      ended = ::waitpid(-1, nullptr, WNOHANG);
    } while (ended > 0);
    if (ended == -1 && errno == ECHILD) return true;
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace sherd::tools
