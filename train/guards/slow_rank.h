// Detection of stragglers: ranks that the others wait for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <sherd/train/report/step_result.h>

namespace sherd {

/// Lateness of the ranks at the collectives of a step: the sum for each rank (RankArrivals), in milliseconds;
/// of these the median over ranks, the largest, and its rank.
struct ArrivalFigures {
  double median = 0, worst = 0;
  int rank = 0;
};

/// Returns the figures; nothing without a collective.
[[nodiscard]] std::optional<ArrivalFigures> arrival_figures(const ArrivalTotals& step);

/// Returns the arrivals since `before`, which may be empty.
[[nodiscard]] ArrivalTotals since(const ArrivalTotals& before, ArrivalTotals now);

/// Searches stretches of steps for one rank that is the last to reach most collectives, by more than a part
/// of the step's time.
class SlowRank {
 public:
  struct Options {
    int64_t window = 50;    // steps that are evaluated together
    int64_t silence = 500;  // steps without a further line after one
    double last = 0.5;      // of the collectives: more of them count as most
    double time = 0.1;      // of a step's time
  };
  SlowRank() : SlowRank(Options{}) {}
  explicit SlowRank(const Options& options) : options_(options) {}

  /// Adds a step. @returns "rank 3 arrives last in 94 % of the collectives, 120 ms per step after the median
  /// (steps 1 to 50)" when its window ends and has such a rank.
  [[nodiscard]] std::optional<std::string> step(const StepResult& result);

 private:
  const Options options_;
  int64_t steps_ = 0, silent_until_ = 0;
  double ms_ = 0;
  ArrivalTotals window_;
};

}  // namespace sherd
