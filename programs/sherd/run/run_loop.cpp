#include "run_loop.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sherd/base/error.h>
#include <sherd/checkpoint/files/detail/random_token.h>
#include <sherd/checkpoint/files/save_lock.h>
#include <sherd/train/guards/stop_request.h>

#include "run_hosts.h"
#include "run_processes.h"
#include "run_progress.h"
#include "run_rank.h"
#include "run_room.h"
#include "run_target.h"

namespace sherd::tools {
namespace {

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(std::llround(seconds * 1e3));
}

double seconds_between(StartOutcome::Clock::time_point from, StartOutcome::Clock::time_point to) {
  return std::max(0.0, std::chrono::duration<double>(to - from).count());
}

// Returns name and start number of the batch system's job, or of the run, of this supervisor.
std::pair<std::string, uint64_t> job_of_this_process() {
  const LockHolder self = LockHolder::of_this_process();
  return self.run.empty() ? std::pair(self.job, self.job_start) : std::pair(self.run, self.start);
}

/// Returns whether mpirun would find the hosts of a cluster's job.
bool in_an_allocation() {
  const char* const nodes = std::getenv("SLURM_JOB_NUM_NODES");
  if (nodes != nullptr && std::atoi(nodes) > 1) return true;
  return std::ranges::any_of(
      std::array{"PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE", "OMPI_MCA_orte_default_hostfile"},
      [](const char* name) { return std::getenv(name) != nullptr; });
}

/// Returns whether ranks may be on other hosts, which the launcher of this one does not reach.
bool is_for_mpirun(const RunOptions& o) {
  return in_an_allocation() || !o.hosts.empty() || !o.hostfile.empty() || o.mpirun != RunOptions().mpirun ||
         !o.mpirun_arguments.empty();
}

std::vector<std::string> local_command(int64_t ranks, const std::string& keeper,
                                       const std::vector<std::string>& command) {
  std::vector<std::string> words = {keeper, "run", "--start-ranks", std::to_string(ranks), "--"};
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

class Run {
 public:
  Run(const RunOptions& options, std::ostream& err)
      : options_(options),
        err_(err),
        target_(options.command),
        local_(options.local || (target_.starts_without_mpi() && !is_for_mpirun(options))),
        mark_(random_token()) {}

  int run() {
    hold_save_folder();
    read_hosts();
    RestartPolicy policy(options_.policy, target_.rules());
    NextStart next = policy.first(capacity());
    if (next.ranks == 0) {
      say("{}", next.why);
      return kRefused;
    }
    if (target_.save().empty())
      say("the command has no --save: each restart begins at step 0, without a checkpoint to resume");
    std::string because;
    for (start_ = 1;; ++start_) {
      const RunTarget::Newest from = target_.newest();
      const std::vector<std::string> command = target_.command(next.ranks, start_ > 1);
      say("start {} of at most {}: {} rank{}, {}{}{}", start_, 1 + options_.policy.max_restarts, next.ranks,
          next.ranks == 1 ? "" : "s",
          from.sequence > 0          ? fmt::format("from step {}", from.step)
          : target_.resume().empty() ? "from the beginning"
                                     : fmt::format("from its --resume {}", target_.resume()),
          because.empty() ? "" : ", because " + because, next.why.empty() ? "" : " (" + next.why + ")");
      const RunProgress progress(target_);
      const StartOutcome outcome = run_start(start_options(next.ranks, command, progress));
      count_lost(outcome, progress);
      if (outcome.well(next.ranks)) return ended_well(outcome, policy);
      const std::string cause = outcome.cause();
      const double seconds = seconds_between(outcome.at, outcome.failed);
      int stopped = outcome.stop_signal;
      if (stopped == 0) stopped = stop_asked(std::chrono::milliseconds(0));
      if (stopped != 0)
        return gives_up(policy, 1, fmt::format("stopped by signal {} ({})", stopped, ::strsignal(stopped)),
                        cause);
      const FailedStart failed = failed_start(outcome, next.ranks, progress.made(), options_.policy);
      policy.set_rules(target_.rules());
      next = policy.after(failed, capacity());
      if (next.ranks == 0) return gives_up(policy, next.exit_code, next.why, cause);
      if (const std::string full = failed.unsaved ? wait_for_room() : ""; !full.empty())
        return gives_up(policy, 1, full, cause);
      because = fmt::format("{} after {:.1f} s", cause, seconds);
      down_since_ = outcome.failed;
    }
  }

 private:
  template <class... Args>
  void say(fmt::format_string<Args...> text, Args&&... args) {
    err_ << "sherd run: " << fmt::format(text, std::forward<Args>(args)...) << std::endl;
  }

  // Two supervisors would count each other's checkpoints as their own.
  void hold_save_folder() {
    const std::filesystem::path folder = target_.save();
    if (folder.empty()) return;
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error)
      throw IoError(fmt::format("--save '{}': cannot be made: {}; name a folder that can be written to",
                                folder.string(), error.message()));
    // A name that a save sweeps, should this process end in between.
    const auto temporary = [folder, made = 0, this]() mutable {
      return folder / fmt::format("lock.tmp-{}-{}", mark_, made++);
    };
    held_.emplace(folder, FileSystem::posix(), LockHolder::of_this_process(), temporary, "supervisor");
  }

  void read_hosts() {
    const int64_t ranks = options_.policy.ranks;
    const auto read = [&](int64_t otherwise) {
      return options_.hostfile.empty() ? parse_hosts(options_.hosts, otherwise)
                                       : read_hostfile(options_.hostfile, otherwise);
    };
    if (options_.hosts.empty() && options_.hostfile.empty()) return;
    const auto count = static_cast<int64_t>(read(1).size());
    hosts_ = read((ranks + count - 1) / count);
    if (slots_of(hosts_) < ranks)
      throw InvalidArgument(
          fmt::format("--nproc {}: the hosts have {} slots; give them more (NAME:SLOTS, or slots= in "
                      "the file), or fewer ranks",
                      ranks, slots_of(hosts_)));
  }

  // Ranks that the hosts which are there take; says which are not.
  int64_t capacity() {
    if (hosts_.empty()) return std::numeric_limits<int64_t>::max();
    there_ =
        hosts_there(hosts_, [&](const std::string& host) { return answers_to(options_.remote_shell, host); });
    std::vector<std::string> gone;
    for (const RunHost& h : hosts_)
      if (std::none_of(there_.begin(), there_.end(), [&](const RunHost& t) { return t.name == h.name; }))
        gone.push_back(h.name);
    if (!gone.empty())
      say("left out, for `{}` does not reach them: {}", options_.remote_shell, fmt::join(gone, ", "));
    return slots_of(there_);
  }

  StartOptions start_options(int64_t ranks, const std::vector<std::string>& command,
                             const RunProgress& progress) const {
    std::vector<std::string> hosts;
    for (const RunHost& h : there_) hosts.push_back(fmt::format("{}:{}", h.name, h.slots));
    const std::string keeper = std::filesystem::read_symlink("/proc/self/exe");
    return {.command = local_ ? local_command(ranks, keeper, command)
                              : launcher_command(options_, ranks, fmt::format("{}", fmt::join(hosts, ",")),
                                                 keeper, command),
            .environment = environment(),
            .ranks = ranks,
            .begin_within = milliseconds_of(options_.begin_within),
            .grace = milliseconds_of(options_.grace),
            .progressed = [&progress] { return progress.made(); },
            .stop_grace = milliseconds_of(options_.stop_grace),
            .stopped_for = milliseconds_of(options_.stopped_for),
            .end_within = milliseconds_of(options_.end_within)};
  }

  std::map<std::string, std::string> environment() const {
    std::map<std::string, std::string> variables = {{"SHERD_RUN", mark_},
                                                    {"SHERD_RUN_START", std::to_string(start_)}};
    if (const auto [job, job_start] = job_of_this_process(); !job.empty())
      variables.insert({{"SHERD_JOB", job}, {"SHERD_JOB_START", std::to_string(job_start)}});
    return variables;
  }

  void count_lost(const StartOutcome& outcome, const RunProgress& progress) {
    if (down_since_) down_ += seconds_between(*down_since_, outcome.began ? outcome.all_begun : outcome.over);
    down_since_.reset();
    if (outcome.failed != StartOutcome::Clock::time_point() && outcome.began)
      again_ += std::min(seconds_between(outcome.all_begun, outcome.failed),
                         progress.seconds_since_checkpoint() - seconds_between(outcome.failed, outcome.over));
  }

  // Steps that cannot be saved are lost, so a start waits for room. @returns why room is missing; empty:
  // there is room.
  std::string wait_for_room() {
    constexpr double kLongestPause = 30;
    const auto begin = StartOutcome::Clock::now();
    const auto spent = [&] { return seconds_between(begin, StartOutcome::Clock::now()); };
    const RunTarget::Newest newest = target_.newest();
    for (double pause = 0.5;; pause = std::min(2 * pause, kLongestPause)) {
      const std::string full = no_room(target_.save(), newest.sequence > 0 ? newest.step : -1);
      if (full.empty()) return "";
      if (pause == 0.5)
        say("{}; start {} waits for room, at most {:.0f} s", full, start_ + 1, options_.room_within);
      const double left = options_.room_within - spent();
      if (left <= 0)
        return fmt::format("{}; make room and give the same command again, which resumes from step {}", full,
                           newest.step);
      if (const int signal = stop_asked(milliseconds_of(std::min(pause, left))); signal != 0)
        return fmt::format("{}; stopped by signal {} ({})", full, signal, ::strsignal(signal));
    }
  }

  std::string summary(const RestartPolicy& policy) const {
    return fmt::format("{} restart{}; {:.1f} s of work lost, {:.1f} s without all ranks", policy.restarts(),
                       policy.restarts() == 1 ? "" : "s", std::max(0.0, again_), down_);
  }

  int ended_well(const StartOutcome& outcome, const RestartPolicy& policy) {
    say("{}: {}", outcome.stop_signal == 0 ? "ended well" : "stopped as asked, and ended well",
        summary(policy));
    return 0;
  }

  int gives_up(const RestartPolicy& policy, int code, const std::string& why, const std::string& cause) {
    say("aborted: {}; start {}: {}; {}", why, start_, cause.empty() ? "not all ranks ended well" : cause,
        summary(policy));
    return code;
  }

  const RunOptions& options_;
  std::ostream& err_;
  RunTarget target_;
  const bool local_;
  std::string mark_;
  std::optional<SaveLock> held_;
  std::vector<RunHost> hosts_, there_;
  uint64_t start_ = 1;
  std::optional<StartOutcome::Clock::time_point> down_since_;
  double again_ = 0, down_ = 0;
};

// Whether mpirun takes its hosts from a batch system.
bool in_batch_job() {
  constexpr const char* kVariables[] = {"SLURM_JOB_ID", "PBS_NODEFILE", "LSB_JOBID", "PE_HOSTFILE"};
  return std::ranges::any_of(kVariables, [](const char* name) { return std::getenv(name) != nullptr; });
}

}  // namespace

std::vector<std::string> launcher_command(const RunOptions& options, int64_t ranks, const std::string& hosts,
                                          const std::string& keeper,
                                          const std::vector<std::string>& command) {
  std::vector<std::string> words = {options.mpirun};
  if (::geteuid() == 0) words.push_back("--allow-run-as-root");
  // With recovery, ranks outlive one that died, and can report it. A batch system's SIGTERM to mpirun's daemons on
  // other hosts must leave the ranks there time to save.
  // mpirun waits this time after MPI_Abort(), too, and forwards nothing meanwhile: long only where it may have daemons.
  const bool daemons = !hosts.empty() || in_batch_job();
  const std::string kill_time = daemons ? fmt::format("{:.0f}", std::ceil(options.stop_grace)) : "2";
  words.insert(words.end(), {"--oversubscribe", "--bind-to", "none", "--enable-recovery", "--mca",
                             "odls_base_sigkill_timeout", kill_time, "--mca", "ess_base_forward_signals",
                             StopRequest::name_of(kEndRank), "-x", "SHERD_RUN", "-x", "SHERD_RUN_START"});
  if (!job_of_this_process().first.empty())
    words.insert(words.end(), {"-x", "SHERD_JOB", "-x", "SHERD_JOB_START"});
  if (!hosts.empty())
    words.insert(words.end(), {"--mca", "plm_rsh_agent", options.remote_shell, "--host", hosts});
  words.insert(words.end(), options.mpirun_arguments.begin(), options.mpirun_arguments.end());
  words.insert(words.end(), {"-n", std::to_string(ranks), keeper, "run", "--keep-rank", "--"});
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

int run_with_restarts(const RunOptions& options, std::ostream& err) {
  Run run(options, err);
  adopt_orphans();
  block_signals();
  return run.run();
}

}  // namespace sherd::tools
