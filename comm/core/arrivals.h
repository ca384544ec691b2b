// Lateness of ranks at their collectives.
#pragma once

#include <cstdint>
#include <vector>

namespace sherd {

/// Of one rank, over the collectives that were seen. A rank's lateness in a collective is the time from the arrival
/// of the group's first rank to its own.
struct RankArrivals {
  int64_t collectives = 0;  // of groups of two ranks or more
  int64_t last = 0;         // those to which it was the last to come
  int64_t late_ns = 0;      // the sum of its lateness
  int64_t after_median_ns = 0;  // the sum of what its lateness is beyond its group's (lower) median
};

/// By world rank. Empty where the backend does not see arrivals.
using ArrivalTotals = std::vector<RankArrivals>;

}  // namespace sherd
