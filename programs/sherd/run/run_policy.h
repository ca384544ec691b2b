// Restart policy: the number of ranks of the next start after a failed one, or the reason to stop.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "rank_choice.h"
#include "run_start.h"

namespace sherd::tools {

/// Exit code of a program that refuses its arguments.
constexpr int kRefused = 2;
/// Exit code of a program that has done all its work, with a failure: another start would find nothing to do,
/// and end well. Used under `sherd run` only, which sets SHERD_RUN in its environment.
constexpr int kForGood = 3;
/// Exit code of a program that could not write a checkpoint or its metrics. Used under `sherd run` only.
constexpr int kUnsaved = 4;

struct PolicyOptions {
  int64_t ranks = 1;      // at most
  int64_t min_ranks = 1;  // and at least
  int64_t max_restarts = 3;
  /// Each rank that was killed or is suspended when a start fails is one less in the next.
  bool shrink = false;
  /// Ranks that end with this exit code (when it is not 0) are removed from the next start, whatever `shrink`
  /// is.
  int lost_code = 0;
};

/// Failed start, as far as the next one depends on it.
struct FailedStart {
  int64_t ranks = 1;
  /// All ranks had begun.
  bool began = true;
  /// At least one step was finished.
  bool progressed = false;
  double seconds = 0;
  /// First failure, as a text that is equal for equal failures; and whether a killed or suspended rank caused
  /// it.
  std::string way = {};
  bool killed = false;
  /// The exit code of the first failure; -1 without one.
  int code = -1;
  /// A rank ended with kForGood.
  bool for_good = false;
  /// A rank ended with kUnsaved.
  bool unsaved = false;
  /// Ranks that were killed or are suspended; those that ended with lost_code. Only those count that had
  /// failed before the supervisor ended the others.
  int64_t dead = 0, lost = 0;
};
FailedStart failed_start(const StartOutcome& outcome, int64_t ranks, bool progressed,
                         const PolicyOptions& options);

struct NextStart {
  int64_t ranks = 0;  // 0: no further start
  /// The reason to stop, or to have fewer ranks than are left; empty: neither.
  std::string why = {};
  /// The exit code of the whole run when it stops.
  int exit_code = 1;
};

/// Decides about one start after the other. On one machine a rank that died can be started again, and the
/// number stays; it shrinks by ranks that count as lost (`shrink`, `lost_code`), by slots of hosts that do
/// not answer, and by one when two consecutive starts fail to begin, or the same rank is killed twice in a
/// row, before a step is done. The run is aborted when a program ends by itself twice in the same way before
/// a step is done (a crash loop), ends for good (kForGood), or refuses its arguments (kRefused). If it
/// refuses a smaller number of ranks, the next smaller one is tried instead.
class RestartPolicy {
 public:
  RestartPolicy(PolicyOptions options, RankRules rules)
      : options_(options), rules_(rules), left_(options.ranks) {}

  /// The first start, of at most `capacity` ranks.
  NextStart first(int64_t capacity);
  /// The one after `failed`. @param capacity slots of the hosts that are there.
  NextStart after(const FailedStart& failed, int64_t capacity);
  int64_t restarts() const { return restarts_; }
  /// Sets the rules for further numbers of ranks: a checkpoint adds some.
  void set_rules(const RankRules& rules) { rules_ = rules; }

 private:
  NextStart choose(int64_t capacity);

  PolicyOptions options_;
  RankRules rules_;
  int64_t left_;  // ranks that do not count as lost
  int64_t restarts_ = 0;
  int64_t accepted_ = 0;  // the least number of ranks that the program did not refuse
  std::optional<FailedStart> before_;
};

}  // namespace sherd::tools
