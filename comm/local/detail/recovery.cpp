#include <sherd/comm/local/detail/recovery.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sherd::local {

Recovery::Recovery(comm::AbortDomain& domain, int ranks)
    // A wait point, so that leave() of a rank wakes the meeting. Its waits ignore aborted().
    : domain_(domain), point_(domain_.make_wait_point({})), here_(static_cast<size_t>(ranks), false) {}

std::vector<int> Recovery::missing(bool left) const {
  std::vector<int> ranks;
  for (size_t r = 0; r < here_.size(); ++r)
    if (!here_[r] && (!left || domain_.has_left(static_cast<int>(r)))) ranks.push_back(static_cast<int>(r));
  return ranks;
}

// Refuses this and all later meetings: ranks that arrive after a refusal throw, too. Call it with the point's
// mutex held.
void Recovery::refuse(std::string reason) {
  refused_ = std::move(reason);
  point_->changed.notify_all();
}

void Recovery::raise(int world_rank) const {
  const std::string text = fmt::format("recover() on rank {}: {}", world_rank, refused_);
  if (impossible_) throw NotSupported(text);
  throw CommError(text);
}

void Recovery::meet(int world_rank, const std::string& obstacle, std::chrono::milliseconds timeout) {
  constexpr const char* kAdvice = "the launch cannot continue; end it and resume from the last checkpoint";
  std::unique_lock lock(point_->mutex);
  if (refused_.empty() && !obstacle.empty()) {
    impossible_ = true;
    refuse(fmt::format("{}; {}", obstacle, kAdvice));
  }
  if (!refused_.empty()) raise(world_rank);
  here_[static_cast<size_t>(world_rank)] = true;
  if (missing(false).empty()) {
    std::fill(here_.begin(), here_.end(), false);
    // Before the others return: their first call finds the failure cleared.
    domain_.reset();
    ++meetings_;
    point_->changed.notify_all();
    return;
  }
  const auto met = [&, before = meetings_] { return meetings_ != before; };
  const bool ended = point_->changed.wait_until(lock, std::chrono::steady_clock::now() + timeout, [&] {
    return met() || !refused_.empty() || !missing(true).empty();
  });
  // Also at a timeout that comes together with the last rank.
  if (met()) return;
  if (refused_.empty()) {
    const std::vector<int> ranks = missing(ended);
    const bool several = ranks.size() > 1;
    const std::string who = fmt::format("rank{} {}", several ? "s" : "", fmt::join(ranks, ", "));
    refuse(
        ended ? fmt::format("{} {} ended and will not call it; {}", who, several ? "have" : "has", kAdvice)
              : fmt::format("waited {} ms for {}, which did not call it; {}", timeout.count(), who, kAdvice));
  }
  raise(world_rank);
}

}  // namespace sherd::local
