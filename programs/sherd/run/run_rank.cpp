#include "run_rank.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sherd/base/error.h>
#include <sherd/base/program.h>
#include <sherd/train/guards/stop_request.h>

#include "run_processes.h"
#include "run_report.h"

namespace sherd::tools {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kNotStarted = 127, kBySignal = 128;
constexpr milliseconds kTermToKill{2'000}, kKillAgain{100};

// What the keeper and its parent take. SIGPIPE is never taken: a write fails instead.
sigset_t taken() {
  std::vector<int> signals = stop_signals();
  signals.insert(signals.end(), {SIGCHLD, SIGPIPE, kEndRank});
  return signal_set(signals);
}

int rank_in_environment() {
  for (const char* name :
       {"SHERD_RUN_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "RANK"})
    if (const char* text = std::getenv(name)) return std::atoi(text);
  return -1;
}

void tell(const RankReport& report) {
  const std::string line = encode_report(report);
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t put = ::write(STDERR_FILENO, line.data() + done, line.size() - done);
    if (put == -1 && errno != EINTR) return;  // the reader has closed its end
    if (put > 0) done += static_cast<size_t>(put);
  }
}

[[noreturn]] void become(const std::vector<std::string>& command, pid_t keeper) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != keeper) ::_exit(kNotStarted);  // it died before the line above
  const sigset_t unblocked = taken();
  ::sigprocmask(SIG_UNBLOCK, &unblocked, nullptr);
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execvp(words[0], words.data());
  print_error("sherd run", fmt::format("cannot start '{}': {}", command[0], std::strerror(errno)));
  ::_exit(kNotStarted);
}

pid_t forked() {
  const pid_t child = ::fork();
  if (child == -1) throw Error(fmt::format("cannot start a process: {}", std::strerror(errno)));
  return child;
}

class Keeper {
 public:
  Keeper(RankReport report, pid_t parent) : report_(std::move(report)), parent_(parent) {}

  int run(const std::vector<std::string>& command) {
    ::setpgid(0, 0);  // the parent passes signals to its group on
    ::prctl(PR_SET_PDEATHSIG, kEndRank);
    adopt_orphans();
    const pid_t self = ::getpid();
    program_ = forked();
    if (program_ == 0) become(command, self);
    ::setpgid(program_, program_);
    report_.process = program_;
    tell(report_);
    while (!over_ || !descendants().empty()) {
      act(wait());
      if (::getppid() != parent_) return parent_died();
      reap();
    }
    if (!told_) tell_end();
    return report_.kind == RankReport::Kind::ended ? report_.value : kBySignal + report_.value;
  }

 private:
  // 0: it is time to kill; -1: interrupted.
  siginfo_t wait() const {
    siginfo_t info = {};
    const sigset_t set = taken();
    int signal = 0;
    if (!kill_at_) {
      signal = ::sigwaitinfo(&set, &info);
    } else {
      const auto left =
          std::max<int64_t>(0, std::chrono::ceil<milliseconds>(*kill_at_ - Clock::now()).count());
      const timespec time{left / 1000, left % 1000 * 1'000'000};
      signal = ::sigtimedwait(&set, &info, &time);
    }
    info.si_signo = signal == -1 && errno == EAGAIN ? 0 : signal;
    return info;
  }

  void act(const siginfo_t& info) {
    const int signal = info.si_signo;
    const bool by_launcher = signal == SIGTERM && info.si_pid == parent_;
    if (signal == 0)
      kill_all();
    else if (signal == kEndRank)
      end();
    else if (by_launcher && !stopping_)
      ask_and_kill();
    else if (is_stop_signal(signal) && !by_launcher)
      stop();
  }

  void stop() {
    if (!ending_) kill_at_.reset();
    stopping_ = true;
    ask();
  }

  void end() {
    ending_ = true;
    if (!asked_)
      ask_and_kill();
    else
      kill_at_ = Clock::now();
  }

  // A suspended program does not receive SIGTERM.
  void ask_and_kill() {
    ask();
    kill_at_ = Clock::now() + (report_.kind == RankReport::Kind::stopped ? milliseconds(0) : kTermToKill);
  }

  // Once: what a program starts to save must not receive SIGTERM, and a second one would end it.
  void ask() {
    if (!std::exchange(asked_, true)) signal_all(SIGTERM);
  }

  // The group at once; then what has left it.
  void signal_all(int signal) const {
    std::vector<pid_t> others = descendants();
    std::erase_if(others, [this](pid_t process) { return ::getpgid(process) == program_; });
    ::kill(-program_, signal);
    for (const pid_t process : others) ::kill(process, signal);
  }

  void kill_all() {
    signal_all(SIGKILL);
    kill_at_ = Clock::now() + kKillAgain;  // a process may have started another meanwhile
  }

  // The program first: what it has started counts from its end.
  void reap() {
    int status = 0;
    for (const pid_t which : {program_, -1})
      for (pid_t process = 0; (process = ::waitpid(which, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0;) {
        if (process == program_)
          program_changed(status);
        else if (over_ && WIFEXITED(status))
          heirs_code_ = std::max(heirs_code_.value_or(0), WEXITSTATUS(status));
        else if (over_ && WIFSIGNALED(status) && !is_stop_signal(WTERMSIG(status)))
          heirs_code_ = std::max(heirs_code_.value_or(0), kBySignal + WTERMSIG(status));
      }
  }

  void program_changed(int status) {
    using Kind = RankReport::Kind;
    if (WIFSTOPPED(status)) report_.kind = Kind::stopped, report_.value = WSTOPSIG(status);
    if (WIFCONTINUED(status)) report_.kind = Kind::goes_on, report_.value = 0;
    if (WIFEXITED(status)) report_.kind = Kind::ended, report_.value = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) report_.kind = Kind::killed, report_.value = WTERMSIG(status);
    over_ = report_.over();
    if (!over_) {
      tell(report_);
    } else if (!stopping_) {
      if (!killed_by_stop()) tell_end();
      // A stop of the whole job may reach the keeper after its program: stop() then removes the limit.
      if (!descendants().empty()) ask_and_kill();
    }
  }

  bool killed_by_stop() const {
    return report_.kind == RankReport::Kind::killed && is_stop_signal(report_.value);
  }

  void tell_end() {
    if (stopping_ && killed_by_stop() && heirs_code_)
      report_.kind = RankReport::Kind::ended, report_.value = *heirs_code_;
    told_ = true;
    tell(report_);
  }

  int parent_died() {
    end_descendants(kSystemEnds);
    report_.kind = RankReport::Kind::killed;
    report_.value = SIGKILL;
    if (!told_) tell(report_);
    return kBySignal + SIGKILL;
  }

  RankReport report_;
  pid_t parent_, program_ = -1;
  // A stop signal has come; kEndRank has; SIGTERM was sent; the program has ended; its end was reported.
  bool stopping_ = false, ending_ = false, asked_ = false, over_ = false, told_ = false;
  std::optional<int> heirs_code_;
  std::optional<Clock::time_point> kill_at_;
};

}  // namespace

int keep_rank(const std::vector<std::string>& command) {
  const pid_t launcher = ::getppid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (launcher == 1 || ::getppid() != launcher)
    return kNotStarted;  // the launcher died before the line above
  const sigset_t set = taken();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  adopt_orphans();
  const pid_t self = ::getpid();
  RankReport report{.rank = rank_in_environment(), .process = self};
  char host[256] = "";
  if (::gethostname(host, sizeof host - 1) == 0) report.host = host;
  const pid_t keeper = forked();
  if (keeper == 0) return Keeper(report, self).run(command);
  for (;;) {
    siginfo_t info = {};
    const int signal = ::sigwaitinfo(&set, &info);
    // SIGTERM means another thing from the launcher.
    if (signal == kEndRank || is_stop_signal(signal))
      ::kill(keeper, signal == SIGTERM && info.si_pid != launcher ? SIGUSR1 : signal);
    int status = 0;
    for (pid_t ended = 0; (ended = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      if (ended != keeper) continue;
      if (WIFEXITED(status)) return WEXITSTATUS(status);
      end_descendants(kSystemEnds);  // what the keeper had started
      report.kind = RankReport::Kind::killed;
      report.value = WTERMSIG(status);
      tell(report);
      return kBySignal + report.value;
    }
  }
}

}  // namespace sherd::tools
