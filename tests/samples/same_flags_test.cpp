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

/// What three ranks are told, of which rank 2's settings are changed.
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
  const auto texts = told([](TrainConfig& c) { c.seq = 64, c.lr = 0.5, c.metrics = "mine.jsonl", c.threads = 3; });
  EXPECT_THAT(texts, SizeIs(3));
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("different flags"), HasSubstr("--seq of rank 2 (here "),
                                HasSubstr("--lr of rank 2"), Not(HasSubstr("--metrics")), Not(HasSubstr("--threads")))));
}

TEST(SameFlags, MayNameFilesInDifferentPlacesButNotHaveThemHereAndThere) {
  EXPECT_THAT(told([](TrainConfig& c) { c.data = "/elsewhere"; }), SizeIs(0));
  const auto texts = told([](TrainConfig& c) { c.save = "/a/folder"; });
  EXPECT_THAT(texts, SizeIs(3));
  EXPECT_THAT(texts, Each(HasSubstr("--save of rank 2 (here ")));
}

}  // namespace
}  // namespace train_gpt
