#include "run_local.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sherd/base/error.h>
#include <sherd/checkpoint/files/detail/random_token.h>

#include "run_processes.h"
#include "run_rank.h"

namespace sherd::tools {
namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

/// Variables that all ranks share.
std::map<std::string, std::string> of_the_job(int64_t ranks) {
  const std::string size = std::to_string(ranks);
  std::map<std::string, std::string> all = {
      {"WORLD_SIZE", size},
      {"LOCAL_WORLD_SIZE", size},
      {"TORCHELASTIC_RUN_ID", fmt::format("{}.{}", variable("SHERD_RUN"), variable("SHERD_RUN_START"))}};
  // 32 bytes, as digits.
  if (variable("SHERD_JOB_SECRET").empty() && variable("SHERD_JOB_SECRET_FILE").empty())
    all["SHERD_JOB_SECRET"] = random_token() + random_token() + random_token() + random_token();
  return all;
}

void set(const std::map<std::string, std::string>& variables) {
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
}

}  // namespace

int start_ranks(int64_t ranks, const std::vector<std::string>& command) {
  const sigset_t signals = signal_set({SIGUSR1, kEndRank, SIGCHLD});
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGCHLD, SIG_DFL);  // ignored children would leave no exit code
  set(of_the_job(ranks));
  // Addresses of another job would be taken for this one's.
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT", "SHERD_STORE_PORT"}) ::unsetenv(name);
  std::set<pid_t> keepers;
  for (int64_t r = 0; r < ranks; ++r) {
    const pid_t child = ::fork();
    if (child == -1) throw Error(fmt::format("cannot start rank {}: {}", r, std::strerror(errno)));
    if (child == 0) {
      const std::string rank = std::to_string(r);
      set({{"RANK", rank}, {"LOCAL_RANK", rank}, {"SHERD_RUN_RANK", rank}});
      ::_exit(keep_rank(command));
    }
    keepers.insert(child);
  }
  int code = 0;
  while (!keepers.empty()) {
    siginfo_t info = {};
    const int signal = ::sigwaitinfo(&signals, &info);
    if (signal == SIGUSR1 || signal == kEndRank)
      for (const pid_t keeper : keepers) ::kill(keeper, signal);
    int status = 0;
    for (pid_t ended = 0; (ended = ::waitpid(-1, &status, WNOHANG)) > 0;)
      if (keepers.erase(ended) != 0)
        code = std::max(code, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  return code;
}

}  // namespace sherd::tools
