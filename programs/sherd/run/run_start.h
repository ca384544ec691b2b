// One start of the program by `sherd run`: all its ranks, from the launcher's beginning until nothing is
// left.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "run_report.h"

namespace sherd::tools {

struct StartOptions {
  /// The launcher with all its arguments; what it starts are keepers (run_rank.h).
  std::vector<std::string> command;
  std::map<std::string, std::string> environment;
  int64_t ranks = 1;
  /// From the launcher's beginning until the last rank has begun; a quarter of it from the first rank to the last.
  std::chrono::milliseconds begin_within{120'000};
  /// Time of the other ranks to report a failure, from the first one on, before they are ended. After a
  /// killed rank, before a step is done, not more than the start has lasted, but at least 2 s: they may still
  /// wait for it in MPI_Init.
  std::chrono::milliseconds grace{15'000};
  /// Returns whether a step was done since the start.
  std::function<bool()> progressed = [] { return false; };
  /// Time of the ranks to save and end when the supervisor was asked to stop.
  std::chrono::milliseconds stop_grace{300'000};
  /// Maximum time that a rank may be suspended (SIGSTOP). Its peers may wait for it for hours, so after this
  /// time the start counts as failed by it.
  std::chrono::milliseconds stopped_for{60'000};
  /// From the end of the first rank that ended well to the end of the last. The launcher has as long, but no
  /// more than a minute, to end after that.
  std::chrono::milliseconds end_within{3'600'000};
};

struct StartOutcome {
  using Clock = std::chrono::steady_clock;

  /// Ended ranks, in the order in which they did. The first `on_their_own` of them were not ended by the
  /// supervisor, which had not begun to end ranks.
  std::vector<RankReport> ended;
  size_t on_their_own = 0;
  std::set<int> begun;
  /// The first that did not end well, or that was suspended for too long, and what was printed last before. A
  /// killed rank comes before those that ended with an exit code: their reports may have arrived earlier, but
  /// their failures follow from its end.
  std::optional<RankReport> first;
  std::string words;
  /// Ranks that stood stopped when the start was ended.
  std::vector<RankReport> stopped;
  /// Ranks that did not begin, where the launcher numbers them and one has begun.
  std::vector<int> absent;
  /// Ranks that had begun, and whose exit status was not reported.
  std::vector<int> lost;
  /// Ranks that did not end within `end_within` after others had ended well.
  std::vector<int> late;
  bool began = false;       // all ranks had
  int stop_signal = 0;      // what the supervisor was asked to stop by; 0: it was not
  int launcher_status = 0;  // as waitpid() has it
  Clock::time_point at, all_begun, failed, over;

  /// All ranks ended, and with exit code 0.
  bool well(int64_t ranks) const;
  /// The first cause, in words; empty when all went well.
  std::string cause() const;
};

/// Starts the command and returns when no process of it is left on this host. A stop signal (stop_signals())
/// to this process is passed on to the ranks, as SIGUSR1 of the launcher; a second one, after kSameSignal, ends
/// them at once. The output of the launcher and its ranks is printed to stdout and stderr; without a reader it
/// is lost. @pre block_signals() was called. @throws IoError when the launcher cannot be started.
StartOutcome run_start(const StartOptions& options);

/// Call it once, before the first start: stop signals, but for those that this process was started to ignore,
/// and SIGCHLD stay pending until run_start() or stop_asked() takes them.
void block_signals();
/// The signal that asks this process to stop, when one has come since; 0: none. Waits for one up to `time`.
int stop_asked(std::chrono::milliseconds time);

}  // namespace sherd::tools
