// Processes of one job that were started with different flags.
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sherd/comm/core/require_equal.h>

#include "same_flags.h"

namespace train_gpt {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

/// Messages on three ranks, of which rank 2's settings are changed.
std::vector<std::string> told(const std::function<void(TrainConfig&)>& change) {
  std::mutex mutex;
  std::vector<std::string> texts;
  try {
    sherd::launch(3, [&](sherd::RankContext& rank) {
      TrainConfig config;
      config.comm = "mpi";
      config.ranks = 3;
      if (rank.world->rank() == 2) change(config);
      try {
        check_same_flags(rank, config);
      } catch (const sherd::RanksDiffer& e) {
        std::lock_guard lock(mutex);
        texts.emplace_back(e.what());
        EXPECT_EQ(e.ranks(), std::vector{2});
      }
    });
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what();
  }
  return texts;
}

TEST(SameFlags, AreNamedWithTheRankOnEveryRank) {
  const auto texts =
      told([](TrainConfig& c) { c.seq = 64, c.lr = 0.5, c.metrics = "mine.jsonl", c.threads = 3; });
  EXPECT_THAT(texts, SizeIs(3));
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("different flags"), HasSubstr("--seq of rank 2 (here "),
                                HasSubstr("--lr of rank 2"), Not(HasSubstr("--metrics")),
                                Not(HasSubstr("--threads")))));
}

TEST(SameFlags, ThatMakeRanksMeetAreCompared) {
  const auto texts = told([](TrainConfig& c) {
    c.check_replicas = 3, c.verify_step = 7, c.measure_peak = false, c.save_failure = "stop",
    c.allow_new_state = true;
    c.trace = "trace.json", c.timeline = "t.svg", c.trace_steps = 7, c.max_wall = "1h", c.temperature = 0.5,
    c.log_dir = "l";
  });
  EXPECT_THAT(texts, SizeIs(3));
  for (const char* flag :
       {"--check-replicas", "--verify-step", "--measure-peak", "--save-failure", "--allow-new-state",
        "--trace", "--timeline", "--trace-steps", "--max-wall", "--temperature"})
    EXPECT_THAT(texts, Each(HasSubstr(std::string(flag) + " of rank 2")));
  EXPECT_THAT(texts, Each(Not(HasSubstr("--log-dir"))));
}

// Metrics are rank 0's alone, but all ranks time products for them.
TEST(SameFlags, Rank0DecidesForAllWhatItAloneWrites) {
  for (const int has_it : {0, 2}) {
    std::mutex mutex;
    std::vector<bool> heard;
    sherd::launch(3, [&](sherd::RankContext& rank) {
      TrainConfig config;
      config.comm = "mpi";
      const bool answer = as_rank_0_says(rank, config, rank.world->rank() == has_it);
      const std::lock_guard lock(mutex);
      heard.push_back(answer);
    });
    EXPECT_EQ(heard, std::vector<bool>(3, has_it == 0));
  }
}

TEST(SameFlags, MayNameFilesInDifferentPlacesButNotHaveThemHereAndThere) {
  EXPECT_THAT(told([](TrainConfig& c) { c.data = "/elsewhere"; }), SizeIs(0));
  const auto texts = told([](TrainConfig& c) { c.save = "/a/folder"; });
  EXPECT_THAT(texts, SizeIs(3));
  EXPECT_THAT(texts, Each(HasSubstr("--save of rank 2 (here ")));
}

}  // namespace
}  // namespace train_gpt
