#include "run_start.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sherd/base/error.h>
#include <sherd/train/guards/stop_request.h>

#include "run_processes.h"
#include "run_rank.h"

namespace sherd::tools {
namespace {

using Clock = StartOutcome::Clock;
using std::chrono::milliseconds;

// What keepers on all hosts have to end their ranks, and the launcher to end after them; then whatever is left on this host is
// killed. Ranks on a host that is not reached end with the launcher's part there, when it misses the launcher, and can no longer
// commit anything.
constexpr milliseconds kLauncherEnds{3'000};
// Time of the launcher to pass on the last output once all ranks have ended.
constexpr milliseconds kLauncherEndsItself{60'000};
// This process was stopped itself, or got no CPU, when it sleeps for so much longer than it wanted to.
constexpr milliseconds kOverslept{2'000};
constexpr milliseconds kShortestGrace{2'000};
constexpr size_t kMaxWords = 300;

// Those that this process was started to ignore (nohup, a shell's background job) stay ignored.
sigset_t watched_stops() {
  std::vector<int> signals = stop_signals();
  std::erase_if(signals, [](int signal) {
    struct sigaction action = {};
    return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
  });
  return signal_set(signals);
}

sigset_t watched() {
  sigset_t set = watched_stops();
  ::sigaddset(&set, SIGCHLD);
  return set;
}

// A stop signal that the whole job receives would make the launcher end the ranks while they save. It takes
// SIGUSR1 alone, which it passes on.
sigset_t launcher_blocks() {
  sigset_t set = signal_set(stop_signals());
  ::sigdelset(&set, SIGUSR1);
  return set;
}

void print(std::string_view text, int file = STDERR_FILENO) {
  while (!text.empty()) {
    const ssize_t put = ::write(file, text.data(), text.size());
    if (put == -1 && errno != EINTR) return;  // what does not get through is lost, as print_error() says
    if (put > 0) text.remove_prefix(static_cast<size_t>(put));
  }
}

/// Remembers the last line that says something.
class LastLine {
 public:
  void add(std::string_view text) {
    for (const char c : text) {
      if (c != '\n' && c != '\r') {
        if (now_.size() < kMaxWords) now_ += c;
        continue;
      }
      // Frames of mpirun's messages say nothing, and neither do its complaints about a rank that went, or its
      // notes of signals.
      if (now_.find_first_not_of("- \t") != now_.npos && now_.find("PMIX ERROR") == now_.npos &&
          now_.find("Forwarding signal") == now_.npos)
        last_ = now_;
      now_.clear();
    }
  }
  std::string get() const { return now_.find_first_not_of("- \t") != now_.npos ? now_ : last_; }

 private:
  std::string now_, last_;
};

class Start {
 public:
  explicit Start(const StartOptions& options)
      : options_(options),
        reader_([this](const RankReport& r) { hear(r); },
                [this](std::string_view text) {
                  print(text);
                  lines_.add(text);
                }) {}

  StartOutcome run() {
    out_.at = Clock::now();
    process_ = start_process(options_.command, options_.environment, launcher_blocks());
    const sigset_t set = watched();
    signals_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    until_ = out_.at + options_.begin_within;
    while (!launcher_over_) {
      wait();
      if (Clock::now() < deadline()) continue;
      catch_up();
      if (Clock::now() >= deadline()) escalate();
    }
    if (!end_descendants(kSystemEnds))
      print(fmt::format("sherd run: processes {} do not end; a file system or a device may hang\n",
                        fmt::join(descendants(), ", ")));
    while (read_some()) {  // what was printed last
    }
    for (const int file : {process_.output, process_.error_output, signals_}) ::close(file);
    finish();
    return std::move(out_);
  }

 private:
  /// A suspended rank.
  struct Standing {
    RankReport rank;
    Clock::time_point since;
  };

  // When the start is to be ended, as far as is known.
  Clock::time_point deadline() const {
    Clock::time_point at = until_;
    if (ending_) return at;
    // Once something has failed, the grace counts.
    if (!out_.first && !standing_.empty()) at = std::min(at, standing_.front().since + options_.stopped_for);
    if (!out_.first && ended_well_) at = std::min(at, *ended_well_ + options_.end_within);
    return at;
  }

  // Until something happens, or the time is up.
  void wait() {
    pollfd files[] = {{signals_, POLLIN, 0},
                      {open_[0] ? process_.output : -1, POLLIN, 0},
                      {open_[1] ? process_.error_output : -1, POLLIN, 0}};
    const auto begin = Clock::now();
    const milliseconds left(
        std::clamp<int64_t>(std::chrono::ceil<milliseconds>(deadline() - begin).count(), 0, 60'000));
    ::poll(files, std::size(files), static_cast<int>(left.count()));
    if (const auto late = Clock::now() - begin - left; late > kOverslept) postpone(late);
    // Signals first: a rank that the same signal has ended has not failed.
    signalfd_siginfo signal;
    while (::read(signals_, &signal, sizeof signal) == sizeof signal)
      if (signal.ssi_signo != SIGCHLD) stop(static_cast<int>(signal.ssi_signo));
    read_some();
    int status = 0;
    for (pid_t ended = 0; (ended = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      if (ended != process_.process) continue;
      launcher_over_ = true;
      out_.launcher_status = status;
    }
  }

  // Excludes time in which this process could not run: ranks may not have run either, as in a suspended job.
  void postpone(Clock::duration by) {
    if (until_ != Clock::time_point::max()) until_ += by;
    for (Standing& s : standing_) s.since += by;
    if (ended_well_) *ended_well_ += by;
  }

  // Whatever was said before counts as said in time. Not more than a pipe holds: what is printed without end
  // must not keep this from ending.
  void catch_up() {
    for (int i = 0; i < 32 && read_some(); ++i) {
    }
  }

  // Returns whether there may be more.
  bool read_some() {
    const bool of_output =
        read_from(process_.output, open_[0], [](std::string_view text) { print(text, STDOUT_FILENO); });
    const bool of_errors =
        read_from(process_.error_output, open_[1], [this](std::string_view text) { reader_.add(text); });
    return of_output || of_errors;
  }

  template <class Take>
  static bool read_from(int descriptor, bool& open, Take take) {
    pollfd file{descriptor, POLLIN, 0};
    if (!open || ::poll(&file, 1, 0) <= 0) return false;
    char bytes[4096];
    const ssize_t got = ::read(descriptor, bytes, sizeof bytes);
    if (got > 0) take(std::string_view(bytes, static_cast<size_t>(got)));
    if (got == 0 || (got == -1 && errno != EINTR)) open = false;
    return open;
  }

  void hear(const RankReport& report) {
    using Kind = RankReport::Kind;
    if (!ending_) std::erase_if(standing_, [&](const Standing& s) { return s.rank.same_rank(report); });
    if (report.kind == Kind::started) {
      out_.begun.insert(report.rank);
      // The launcher starts all ranks at once. A rank whose keeper is killed before its report never begins.
      if (++begun_ == 1 && out_.stop_signal == 0)
        until_ = std::min(until_, Clock::now() + options_.begin_within / 4);
      if (out_.stop_signal != 0) pass_stop_on();  // what came before did not reach this rank
      if (static_cast<int64_t>(begun_) != options_.ranks) return;
      out_.began = true;
      out_.all_begun = Clock::now();
      if (!ending_ && !out_.first && out_.stop_signal == 0) until_ = Clock::time_point::max();
    }
    if (report.kind == Kind::stopped && !ending_) standing_.push_back({report, Clock::now()});
    if (report.over()) {
      out_.ended.push_back(report);
      if (!ending_) hear_end(report);
    }
    // Suspended ranks have nothing to report, and the others have done so.
    const bool all_said = out_.ended.size() + standing_.size() == begun_;
    if (out_.first && !ending_ && !standing_.empty() && all_said) until_ = Clock::now();
  }

  void hear_end(const RankReport& report) {
    if (report.well()) {
      if (!ended_well_) ended_well_ = Clock::now();
    } else if (!out_.first) {
      out_.first = report;
      out_.words = lines_.get();
      fails();
      if (out_.stop_signal == 0) until_ = std::min(until_, Clock::now() + grace_after(report));
    } else if (out_.first->kind == RankReport::Kind::ended && was_killed(report)) {
      // The failures of its peers follow from the killed rank; they were only received earlier.
      out_.first = report;
    }
    if (static_cast<int64_t>(out_.ended.size()) == options_.ranks)
      until_ = std::min(until_, Clock::now() + std::min(kLauncherEndsItself, options_.end_within));
  }

  static bool was_stopped(const RankReport& report) {
    return report.kind == RankReport::Kind::killed && is_stop_signal(report.value);
  }

  // SIGTERM ends processes when another has failed.
  static bool was_killed(const RankReport& report) {
    return report.kind == RankReport::Kind::killed && !was_stopped(report);
  }

  // Before their first step ranks may wait in MPI_Init for one that was killed, and cannot report anything.
  Clock::duration grace_after(const RankReport& report) const {
    if (!was_killed(report) || options_.progressed()) return options_.grace;
    return std::min<Clock::duration>(options_.grace,
                                     std::max<Clock::duration>(kShortestGrace, Clock::now() - out_.at));
  }

  void fails() {
    if (out_.failed == Clock::time_point()) out_.failed = Clock::now();
  }

  // A second signal ends the ranks at once. So does the first where none has begun: nothing would be saved,
  // and the launcher may not take signals yet.
  void stop(int signal) {
    const auto now = Clock::now();
    if (out_.stop_signal != 0) {
      if (now - stopped_at_ >= kSameSignal && !ending_) escalate();
      return;
    }
    out_.stop_signal = signal;
    stopped_at_ = now;
    if (begun_ > 0)
      pass_stop_on();
    else if (!ending_)
      until_ = now;
  }

  // Keepers pass it on to their program once, however often it arrives.
  void pass_stop_on() {
    ::kill(process_.process, SIGUSR1);
    if (ending_) return;
    const auto until = stopped_at_ + options_.stop_grace;
    // The other ranks have --grace after a rank's own failure; a rank that the same signal has ended is none.
    until_ = out_.first && !was_stopped(*out_.first) ? std::min(until_, until) : until;
  }

  // To all keepers, by the launcher; then SIGKILL to all processes that are left on this host.
  void escalate() {
    if (!ending_) judge();
    ::kill(process_.process, ending_ ? SIGKILL : kEndRank);
    if (ending_) end_descendants(kSystemEnds), launcher_over_ = true;
    ending_ = true;
    until_ = Clock::now() + kLauncherEnds;
  }

  // Why the start is ended, where no rank's end is the reason.
  void judge() {
    out_.on_their_own = out_.ended.size();
    if (out_.well(options_.ranks)) {
      print("sherd run: all ranks have ended well, and the launcher has not: it is ended\n");
      return;
    }
    fails();
    const auto now = Clock::now();
    if (out_.first || now >= until_) return;
    if (!standing_.empty() && now >= standing_.front().since + options_.stopped_for)
      out_.first = standing_.front().rank;
    else
      out_.late = not_ended();
  }

  std::vector<int> not_ended() const {
    std::set<int> left = out_.begun;
    for (const RankReport& r : out_.ended) left.erase(r.rank);
    return {left.begin(), left.end()};
  }

  void finish() {
    out_.over = Clock::now();
    out_.lost = not_ended();
    if (!ending_) out_.on_their_own = out_.ended.size();
    for (const Standing& s : standing_) out_.stopped.push_back(s.rank);
    if (!out_.begun.empty() && !out_.begun.contains(-1))
      for (int rank = 0; rank < options_.ranks; ++rank)
        if (!out_.begun.contains(rank)) out_.absent.push_back(rank);
    if (out_.well(options_.ranks)) return;
    fails();
    if (!out_.first && out_.words.empty()) out_.words = lines_.get();
  }

  const StartOptions& options_;
  StartOutcome out_;
  LastLine lines_;
  ReportReader reader_;
  StartedProcess process_;
  int signals_ = -1;
  size_t begun_ = 0;
  bool open_[2] = {true, true};  // its stdout and stderr
  bool launcher_over_ = false, ending_ = false;
  Clock::time_point stopped_at_;
  Clock::time_point until_;
  std::vector<Standing> standing_;               // the longest first; as it was when the ranks were ended
  std::optional<Clock::time_point> ended_well_;  // when the first rank did
};

}  // namespace

bool StartOutcome::well(int64_t ranks) const {
  // A rank that was ended by force after a stop may not have saved, whatever code a script returned for it.
  if (stop_signal != 0 && static_cast<int64_t>(on_their_own) != ranks) return false;
  return static_cast<int64_t>(ended.size()) == ranks &&
         std::all_of(ended.begin(), ended.end(), [](const RankReport& r) { return r.well(); });
}

std::string StartOutcome::cause() const {
  std::string text;
  if (first) {
    text = first->describe();
    // A program that is killed has said nothing of it.
    if (first->kind == RankReport::Kind::ended && !words.empty()) text += fmt::format(": {}", words);
    if (first->kind == RankReport::Kind::stopped) text += " and did not continue";
  } else if (!late.empty()) {
    text = fmt::format(
        "rank {} did not report its exit status within --end-within after the other ranks finished",
        fmt::join(late, ", "));
  } else if (!began) {
    text = fmt::format("only {} ranks began", begun.size());
    if (!absent.empty()) text += fmt::format(", rank {} did not", fmt::join(absent, ", "));
    if (!words.empty()) text += ": " + words;
    if (WIFSIGNALED(launcher_status))
      text += fmt::format("; the launcher was killed by signal {}", WTERMSIG(launcher_status));
    else if (WIFEXITED(launcher_status))
      text += fmt::format("; the launcher ended with exit code {}", WEXITSTATUS(launcher_status));
  } else if (WIFSIGNALED(launcher_status)) {
    text = fmt::format("the launcher was killed by signal {}", WTERMSIG(launcher_status));
  } else if (!lost.empty()) {
    text = fmt::format("the launcher ended without an exit status of rank {}", fmt::join(lost, ", "));
  } else {
    return "";
  }
  for (const RankReport& r : stopped) {
    const bool said = first && first->kind == RankReport::Kind::stopped && first->rank == r.rank;
    if (!said) text += fmt::format("; {}", r.describe());
  }
  return text;
}

StartOutcome run_start(const StartOptions& options) { return Start(options).run(); }

void block_signals() {
  const sigset_t set = watched();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
}

int stop_asked(milliseconds time) {
  const sigset_t set = watched_stops();
  const timespec wait{time.count() / 1000, time.count() % 1000 * 1'000'000};
  return std::max(0, ::sigtimedwait(&set, nullptr, &wait));
}

}  // namespace sherd::tools
