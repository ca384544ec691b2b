#include <sherd/train/plan/dry_rank.h>

#include <gtest/gtest.h>

#include <array>

namespace sherd {
namespace {

TEST(DryRank, CommunicatorsOfSeveralRanksTakeTheMemoryOfNccl) {
  constexpr int64_t kEach = int64_t{8} << 20;
  DryRank rank(1, 4, {.communicator_bytes = kEach});
  const auto taken = [&] { return rank.context().device->allocator().live_bytes("NCCL"); };
  EXPECT_EQ(taken(), kEach);
  {
    const auto clone = rank.context().world->clone();
    EXPECT_EQ(taken(), 2 * kEach);
    const auto alone = rank.context().world->subgroup(std::array{1});
    EXPECT_EQ(taken(), 2 * kEach);
    EXPECT_EQ(rank.forecast(8).by_class.at("message"), 2 * kEach);
  }
  EXPECT_EQ(taken(), kEach);
}

}  // namespace
}  // namespace sherd
