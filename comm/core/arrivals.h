// Lateness of ranks at their collectives.
#pragma once

#include <cstdint>
#include <vector>

namespace sherd {

/// Lateness of one rank over the observed collectives. A rank's lateness in a collective is the time from the
/// arrival of the group's first rank to its own.
struct RankArrivals {
  int64_t collectives = 0;      // in groups of two ranks or more
  int64_t last = 0;             // collectives at which it arrived last
  int64_t late_ns = 0;          // sum of its lateness, in ns
  int64_t after_median_ns = 0;  // sum of its lateness beyond the group's (lower) median, in ns
};

/// Totals by world rank. Empty if the backend does not observe arrivals.
using ArrivalTotals = std::vector<RankArrivals>;

}  // namespace sherd
