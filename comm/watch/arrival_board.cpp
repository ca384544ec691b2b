#include <sherd/comm/watch/arrival_board.h>

#include <algorithm>

namespace sherd::comm {

void ArrivalBoard::add(std::span<const int> world_ranks, std::span<const int64_t> times) {
  if (times.size() < 2) return;
  std::lock_guard lock(mutex_);
  sorted_.assign(times.begin(), times.end());
  std::sort(sorted_.begin(), sorted_.end());
  // The lower median: with two ranks the later one counts as late.
  const int64_t first = sorted_.front(), median = sorted_[(sorted_.size() - 1) / 2];
  // The first of several ranks with the same time.
  const size_t last = static_cast<size_t>(std::max_element(times.begin(), times.end()) - times.begin());
  for (size_t r = 0; r < times.size(); ++r) {
    RankArrivals& rank = totals_[static_cast<size_t>(world_ranks[r])];
    ++rank.collectives;
    rank.last += r == last;
    rank.late_ns += times[r] - first;
    rank.after_median_ns += std::max<int64_t>(0, times[r] - median);
  }
}

ArrivalTotals ArrivalBoard::totals() const {
  std::lock_guard lock(mutex_);
  return totals_;
}

}  // namespace sherd::comm
