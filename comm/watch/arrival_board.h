// Sums of the ranks' lateness at collectives. Private to comm/.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include <sherd/comm/core/arrivals.h>

namespace sherd::comm {

/// Lateness of each world rank, summed over collectives. Thread-safe.
class ArrivalBoard {
 public:
  /// `ranks`: size of the world.
  explicit ArrivalBoard(int ranks) : totals_(static_cast<size_t>(ranks)) {}

  /// Adds one collective of the group of these world ranks, which arrived at `times` (nanoseconds of any one
  /// clock). A group of one rank has no peers to wait for and does not count.
  void add(std::span<const int> world_ranks, std::span<const int64_t> times);
  ArrivalTotals totals() const;

 private:
  mutable std::mutex mutex_;
  ArrivalTotals totals_;
  std::vector<int64_t> sorted_;  // of add(), which then needs no memory of its own
};

}  // namespace sherd::comm
