#include "run_policy.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include <fmt/format.h>

namespace sherd::tools {
namespace {

// A start that has lasted so long counts as progress, even where its steps are not counted.
constexpr double kAtOnce = 60;

// Numbers (processes, ports, addresses) differ from start to start.
std::string without_numbers(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (std::isdigit(static_cast<unsigned char>(c)) == 0)
      out += c;
    else if (out.empty() || out.back() != '#')
      out += '#';
  }
  return out;
}

}  // namespace

FailedStart failed_start(const StartOutcome& outcome, int64_t ranks, bool progressed,
                         const PolicyOptions& options) {
  FailedStart f{.ranks = ranks, .began = outcome.began, .progressed = progressed};
  f.seconds = std::chrono::duration<double>(outcome.over - outcome.at).count();
  for (size_t i = 0; i < outcome.on_their_own; ++i) {
    const RankReport& r = outcome.ended[i];
    const bool ended = r.kind == RankReport::Kind::ended;
    if (r.kind == RankReport::Kind::killed) ++f.dead;
    if (options.lost_code != 0 && ended && r.value == options.lost_code) ++f.lost;
    if (ended && r.value == kForGood) f.for_good = true;
    if (ended && r.value == kUnsaved) f.unsaved = true;
  }
  f.dead += static_cast<int64_t>(outcome.stopped.size());
  if (!outcome.first) {
    f.way = outcome.began ? "launcher" : "begin " + without_numbers(outcome.words);
    return f;
  }
  f.killed = outcome.first->kind != RankReport::Kind::ended;
  if (!f.killed) f.code = outcome.first->value;
  f.way = f.killed ? fmt::format("rank {} signal {}", outcome.first->rank, outcome.first->value)
                   : fmt::format("exit {} {}", f.code, without_numbers(outcome.words));
  return f;
}

NextStart RestartPolicy::choose(int64_t capacity) {
  const int64_t most = std::min(left_, capacity);
  const int64_t ranks = choose_ranks(most, options_.min_ranks, rules_);
  if (ranks == 0)
    return {.why = fmt::format("{} ranks are left, and no count from --min-ranks {} to {} fits {}", most,
                               options_.min_ranks, most, rules_.describe())};
  if (ranks == most) return {.ranks = ranks};
  return {.ranks = ranks,
          .why = fmt::format("{} are left, and {} is the most that fits {}", most, ranks, rules_.describe())};
}

NextStart RestartPolicy::first(int64_t capacity) { return choose(capacity); }

NextStart RestartPolicy::after(const FailedStart& failed, int64_t capacity) {
  const std::optional<FailedStart> before = std::exchange(before_, failed);
  const bool refused = failed.code == kRefused && !failed.progressed;
  if (failed.progressed || (failed.began && !refused))
    accepted_ = accepted_ == 0 ? failed.ranks : std::min(accepted_, failed.ranks);
  if (failed.for_good)
    return {.why =
                "the program has done all that it can, and something is wrong with it: another start would "
                "not mend that"};
  const bool fewer = accepted_ > failed.ranks;
  if (refused && !fewer) return {.why = "the program refuses its arguments", .exit_code = kRefused};
  if (restarts_ == options_.max_restarts)
    return {.why = fmt::format("--max-restarts {} are used up", options_.max_restarts)};

  const auto at_once = [](const FailedStart& f) { return !f.progressed && f.seconds < kAtOnce; };
  const bool again = before && at_once(*before) && at_once(failed) && before->way == failed.way &&
                     before->ranks == failed.ranks;
  if (again && failed.began && !failed.killed)
    return {.why = "it failed twice in the same way before a step was done (a crash loop)"};
  left_ -= failed.lost;
  if (options_.shrink) left_ -= failed.dead;
  if (again || refused) left_ = std::min(left_, failed.ranks - 1);

  NextStart next = choose(capacity);
  if (next.ranks == 0 && again)
    next.why = "it failed twice in the same way before a step was done; " + next.why;
  if (next.ranks > 0) ++restarts_;
  return next;
}

}  // namespace sherd::tools
