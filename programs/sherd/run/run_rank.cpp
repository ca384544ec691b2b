#include "run_rank.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sherd/kernels/device/error.h>
#include <sherd/kernels/device/program.h>

#include "run_report.h"

namespace sherd::tools {
namespace {

constexpr int kNotStarted = 127, kBySignal = 128;

int rank_in_environment() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "RANK"})
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

/// Process that outlives a killed keeper and reports its rank as killed. With recovery on, mpirun reports nothing, and the
/// rank's peers may wait for it in MPI_Init.
class Witness {
 public:
  explicit Witness(RankReport report) {
    int alive[2];  // read to its end when the keeper is gone
    if (::pipe2(alive, O_CLOEXEC) == -1 || (process_ = ::fork()) == -1)
      throw Error(fmt::format("cannot start a process: {}", std::strerror(errno)));
    ::close(alive[process_ == 0 ? 1 : 0]);
    pipe_ = alive[1];
    if (process_ != 0) return;
    ::setpgid(0, 0);  // a signal to the keeper's group does not reach it
    for (pid_t program = 0; ::read(alive[0], &program, sizeof program) > 0;) report.process = program;
    report.kind = RankReport::Kind::killed;
    report.value = SIGKILL;
    tell(report);
    ::_exit(0);
  }
  Witness(const Witness&) = delete;

  void watches(pid_t program) {
    if (::write(pipe_, &program, sizeof program) < 0) return;  // it was killed; the keeper still reports
  }
  /// Ends it, before the keeper reports the end of the rank itself.
  void dismiss() const { ::kill(process_, SIGKILL); }

 private:
  pid_t process_ = -1;
  int pipe_ = -1;
};

[[noreturn]] void become(const std::vector<std::string>& command, pid_t keeper, const sigset_t& mask) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != keeper) ::_exit(kNotStarted);  // it died before the line above
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execvp(words[0], words.data());
  print_error("sherd run", fmt::format("cannot start '{}': {}", command[0], std::strerror(errno)));
  ::_exit(kNotStarted);
}

}  // namespace

int keep_rank(const std::vector<std::string>& command) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() == 1) return kNotStarted;  // the launcher died before the line above
  sigset_t ours, before;
  ::sigemptyset(&ours);
  for (const int s : {SIGCHLD, SIGUSR1, SIGTERM, SIGINT, SIGHUP, SIGPIPE}) ::sigaddset(&ours, s);
  ::sigprocmask(SIG_BLOCK, &ours, &before);
  const pid_t keeper = ::getpid();
  RankReport report{.rank = rank_in_environment(), .process = keeper};
  char host[256] = "";
  if (::gethostname(host, sizeof host - 1) == 0) report.host = host;
  Witness witness(report);
  const pid_t program = ::fork();
  if (program == -1) {
    const int error = errno;  // before dismiss() changes it
    witness.dismiss();
    throw Error(fmt::format("cannot start a process: {}", std::strerror(error)));
  }
  if (program == 0) become(command, keeper, before);

  witness.watches(program);
  report.process = program;
  tell(report);
  for (;;) {
    const int signal = ::sigwaitinfo(&ours, nullptr);
    if (signal == SIGUSR1 || signal == SIGTERM) ::kill(-program, SIGTERM);
    int status = 0;
    while (::waitpid(program, &status, WNOHANG | WUNTRACED | WCONTINUED) == program) {
      using Kind = RankReport::Kind;
      if (WIFSTOPPED(status)) report.kind = Kind::stopped, report.value = WSTOPSIG(status);
      if (WIFCONTINUED(status)) report.kind = Kind::goes_on, report.value = 0;
      if (WIFEXITED(status)) report.kind = Kind::ended, report.value = WEXITSTATUS(status);
      if (WIFSIGNALED(status)) report.kind = Kind::killed, report.value = WTERMSIG(status);
      if (report.over()) witness.dismiss();
      tell(report);
      if (report.over()) {
        ::kill(-program, SIGKILL);  // what it has started
        return report.kind == Kind::ended ? report.value : kBySignal + report.value;
      }
    }
    // The launcher ends its ranks by SIGTERM, which a suspended program does not receive.
    if (signal == SIGTERM && report.kind == RankReport::Kind::stopped) ::kill(-program, SIGKILL);
  }
}

}  // namespace sherd::tools
