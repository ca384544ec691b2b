// The rank that the others wait for is named, in metrics and in a human-readable line.
#include <sherd/train/guards/slow_rank.h>

#include <atomic>
#include <chrono>
#include <thread>

#include <nlohmann/json.hpp>

#include <sherd/comm/launcher.h>
#include <sherd/train/report/metrics.h>

#include "support/message_of.h"
#include "train/report/step_results.h"

namespace sherd {
namespace {

using nlohmann::json;
using test::result_of;

/// A step of 100 ms with 10 collectives, in `last` of which `slow` is the last, `ms` after the others.
StepResult step_with(int64_t step, size_t slow, int64_t last, int64_t ms) {
  StepResult r = result_of(step);
  r.step_ms = 100;
  r.arrivals.assign(4, {.collectives = 10});
  r.arrivals[0].last = 10 - last;
  r.arrivals[slow].last += last;
  r.arrivals[slow].late_ns = r.arrivals[slow].after_median_ns = ms * 1'000'000;
  return r;
}

TEST(ArrivalMetrics, AreTheMedianTheWorstAndItsRank) {
  StepResult r = step_with(1, 3, 9, 40);
  r.arrivals[1].late_ns = 2'000'000;
  const json j = json::parse(format_metrics(r))["arrival_ms"];
  EXPECT_EQ(j, json::parse(R"({"median": 0.0, "worst": 40.0, "rank": 3})"));
  EXPECT_FALSE(json::parse(format_metrics(result_of(1))).contains("arrival_ms"));
  r.arrivals.assign(2, {});
  EXPECT_FALSE(json::parse(format_metrics(r)).contains("arrival_ms")) << "of one rank alone";
}

TEST(SlowRankTest, IsNamedAtTheEndOfAWindowAndThenNotForLong) {
  SlowRank watch({.window = 10, .silence = 25, .last = 0.5, .time = 0.1});
  std::vector<int64_t> said;
  for (int64_t step = 1; step <= 60; ++step)
    if (const auto line = watch.step(step_with(step, 3, 9, 40))) {
      said.push_back(step);
      EXPECT_THAT(
          *line,
          HasSubstr("rank 3 arrives last in 90 % of the collectives, 40 ms per step after the median"));
    }
  EXPECT_EQ(said, (std::vector<int64_t>{10, 40}));
}

TEST(SlowRankTest, IsAbsentWhereNoRankIsLateEnoughOrMostlyLast) {
  for (const auto& [last, ms] : {std::pair<int64_t, int64_t>{9, 9}, {5, 80}, {0, 0}}) {
    SlowRank watch({.window = 5});
    for (int64_t step = 1; step <= 20; ++step)
      EXPECT_FALSE(watch.step(step_with(step, 2, last, ms)).has_value()) << last << " " << ms;
  }
  SlowRank watch({.window = 2});
  for (int64_t step = 1; step <= 20; ++step)
    EXPECT_FALSE(watch.step(result_of(step)).has_value()) << "nothing is seen";
}

// Rank 2 comes 15 ms after it has seen the others on their way, so that other waits for a processor do not
// matter.
TEST(SlowRankTest, OfARunIsTheOneThatIsDelayed) {
  constexpr int kSteps = 4, kBarriers = 5, kRanks = 4;
  std::string line, metrics;
  std::atomic<int> on_their_way{0};
  launch(kRanks, [&](RankContext& c) {
    Stream& s = c.device->compute();
    SlowRank watch({.window = kSteps, .time = 0});  // whatever part of steps that a loaded machine makes long
    const ArrivalTotals start = c.world->arrivals();
    ArrivalTotals before = start;
    int barriers = 0;
    for (int64_t step = 1; step <= kSteps; ++step) {
      for (int i = 0; i < kBarriers; ++i) {
        const int others = ++barriers * (kRanks - 1);
        s.submit("arrival", [&, others, slow = c.world->rank() == 2](ExecutionContext&) {
          if (!slow) {
            ++on_their_way;
            return;
          }
          while (on_their_way < others) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          std::this_thread::sleep_for(std::chrono::milliseconds(15));
        });
        c.world->barrier(s);
      }
      s.synchronize();
      if (c.world->rank() != 0) continue;
      StepResult r = result_of(step);
      const ArrivalTotals now = c.world->arrivals();
      r.arrivals = since(before, now);
      before = now;
      if (const auto said = watch.step(r)) line = *said;
      r.arrivals = since(start, now);
      metrics = format_metrics(r);
    }
  });
  EXPECT_EQ(json::parse(metrics)["arrival_ms"]["rank"], 2);
  EXPECT_THAT(line, HasSubstr("rank 2 arrives last in "));
}

}  // namespace
}  // namespace sherd
