#include <sherd/comm/watch/reports.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>

namespace sherd::comm {
namespace {

// A line of a terminal must not drown in the ranks of a large job.
constexpr size_t kMostWaiting = 16, kMostLastCalls = 4;

}  // namespace

std::string waiting_clause(std::vector<Waiting> waiting) {
  if (waiting.empty()) return "";
  const auto now = std::chrono::steady_clock::now();
  std::sort(waiting.begin(), waiting.end(),
            [](const Waiting& a, const Waiting& b) { return a.world_rank < b.world_rank; });
  std::vector<std::string> ranks;
  for (size_t i = 0; i < std::min(waiting.size(), kMostWaiting); ++i)
    ranks.push_back(
        fmt::format("rank {} (for {} ms)", waiting[i].world_rank,
                    std::chrono::duration_cast<std::chrono::milliseconds>(now - waiting[i].since).count()));
  if (waiting.size() > kMostWaiting) ranks.push_back(fmt::format("{} more", waiting.size() - kMostWaiting));
  const std::string last = ranks.back();
  ranks.pop_back();
  return fmt::format("; {}{}{} come and {}", fmt::join(ranks, ", "), ranks.empty() ? last : " and " + last,
                     waiting.size() > 1 ? " have" : " has", waiting.size() > 1 ? "wait" : "waits");
}

void notice_lone_call(const Purpose& purpose, int world_rank, const std::string& where,
                      const std::vector<int>& missing, std::vector<Waiting> waiting,
                      std::chrono::milliseconds timeout, const std::string& more) noexcept {
  if (!purpose.is_entry() || missing.empty()) return;
  const auto lower = [&](const Waiting& w) { return w.world_rank < world_rank; };
  // One line per call: only the lowest waiting rank writes.
  if (std::any_of(waiting.begin(), waiting.end(), lower)) return;
  try {
    const std::string line = fmt::format(
        "sherd: {} waits for rank{} {}{}{}; every rank has to make this call at the same point, not one of "
        "them alone; it "
        "fails after {} ms\n",
        where, missing.size() > 1 ? "s" : "", fmt::join(missing, ", "), waiting_clause(std::move(waiting)),
        more, timeout.count());
    std::fputs(line.c_str(), stderr);
  } catch (const std::exception&) {  // no memory for a line that changes nothing
  }
}

std::string last_calls_clause(const std::vector<int>& world_ranks,
                              const std::function<std::string(int world_rank)>& last) {
  std::string clause;
  for (size_t i = 0; i < std::min(world_ranks.size(), kMostLastCalls); ++i)
    if (const std::string call = last(world_ranks[i]); !call.empty())
      clause += fmt::format("; the last call of rank {} was {}", world_ranks[i], call);
  return clause;
}

std::string timeout_message(const std::string& where, std::chrono::milliseconds timeout,
                            const std::vector<int>& missing, const std::string& more) {
  return fmt::format(
      "{}: waited {} ms for rank{} {}, which did not call it{}; look there for what went wrong, or raise the "
      "timeout",
      where, timeout.count(), missing.size() > 1 ? "s" : "", fmt::join(missing, ", "), more);
}

std::string left_message(const std::string& where, const std::vector<int>& gone, const std::string& more) {
  const bool several = gone.size() > 1;
  return fmt::format(
      "{}: rank{} {} {} returned from {} and will not call it{}; every rank makes the same calls: end all "
      "ranks' "
      "loops after equally many batches, or let a rank without data continue with empty ones, each loss "
      "being a "
      "sum divided by the number of elements averaged over ranks (sherd::mean_over_ranks(); a mean of "
      "nothing is "
      "NaN)",
      where, several ? "s" : "", fmt::join(gone, ", "), several ? "have" : "has",
      several ? "their bodies" : "its body", more);
}

}  // namespace sherd::comm
