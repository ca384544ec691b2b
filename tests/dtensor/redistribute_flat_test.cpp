#include <gtest/gtest.h>

#include <sherd/dtensor/dtensor.h>

#include "rank_helpers.h"

namespace sherd {
namespace {

constexpr int64_t kSlice = 5;

/// World size, and whether the slice is the view of the full buffer.
class RedistributeFlat : public testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  struct Buffers {
    Tensor full, slice;
  };
  int world() const { return std::get<0>(GetParam()); }
  bool view() const { return std::get<1>(GetParam()); }
  /// full = 1, 2, 3, ...; the slice holds 100 * (rank + 1).
  Buffers buffers(RankContext& rank) const {
    const int r = rank.world->rank();
    Buffers b;
    b.full = make_tensor(rank, {world() * kSlice}, counting(world() * kSlice));
    b.slice = view() ? b.full.flat(r * kSlice, (r + 1) * kSlice)
                     : Tensor::empty(*rank.device, {kSlice}, DType::f32, "s");
    ops::fill(rank.device->compute(), b.slice, 100 * (r + 1));
    return b;
  }
};

TEST_P(RedistributeFlat, ShardToReplicateGathers) {
  launch(world(), [&](RankContext& rank) {
    Stream& stream = rank.device->compute();
    const auto [full, slice] = buffers(rank);
    redistribute_flat(stream, *rank.world, Shard(0), Replicate(), full, slice);
    std::vector<float> expected;
    for (int r = 0; r < world(); ++r)
      expected.insert(expected.end(), kSlice, static_cast<float>(100 * (r + 1)));
    EXPECT_EQ(ops::to_floats(stream, full), expected);
    EXPECT_EQ(rank.device->copied_bytes(), world() == 1 && !view() ? kSlice * 4 : 0);
  });
}

TEST_P(RedistributeFlat, PartialToShardReduces) {
  launch(world(), [&](RankContext& rank) {
    Stream& stream = rank.device->compute();
    auto [full, slice] = buffers(rank);
    const int r = rank.world->rank();
    ops::copy_from_host(stream, full, counting(world() * kSlice).data(), full.nbytes());
    redistribute_flat(stream, *rank.world, Partial(), Shard(0), full, slice);
    std::vector<float> expected = counting(kSlice, static_cast<float>(r * kSlice + 1));
    for (float& v : expected) v *= static_cast<float>(world());
    EXPECT_EQ(ops::to_floats(stream, slice), expected);
    EXPECT_EQ(rank.device->copied_bytes(), world() == 1 && !view() ? kSlice * 4 : 0);
  });
}

TEST_P(RedistributeFlat, PartialToReplicateReducesTheWholeBuffer) {
  launch(world(), [&](RankContext& rank) {
    Stream& stream = rank.device->compute();
    const Tensor full = make_tensor(rank, {world() * kSlice}, counting(world() * kSlice));
    redistribute_flat(stream, *rank.world, Partial(), Replicate(), full, Tensor());  // needs no slice
    std::vector<float> expected = counting(world() * kSlice);
    for (float& v : expected) v *= static_cast<float>(world());
    EXPECT_EQ(ops::to_floats(stream, full), expected);
    EXPECT_EQ(rank.device->copied_bytes(), 0);
  });
}

TEST_P(RedistributeFlat, ReplicateToShardCopiesUnlessItIsAView) {
  launch(world(), [&](RankContext& rank) {
    Stream& stream = rank.device->compute();
    const auto [full, slice] = buffers(rank);
    const int r = rank.world->rank();
    redistribute_flat(stream, *rank.world, Replicate(), Shard(0), full, slice);
    EXPECT_EQ(ops::to_floats(stream, slice),
              view() ? std::vector<float>(kSlice, static_cast<float>(100 * (r + 1)))
                     : counting(kSlice, static_cast<float>(r * kSlice + 1)));
    EXPECT_EQ(rank.device->copied_bytes(), view() ? 0 : kSlice * 4);
    EXPECT_TRUE(rank.world->counts().empty() || rank.world->counts()["all_gather"].calls == 0);
  });
}

TEST_P(RedistributeFlat, TheSamePlacementDoesNothing) {
  launch(world(), [&](RankContext& rank) {
    Stream& stream = rank.device->compute();
    const auto [full, slice] = buffers(rank);
    const auto before = ops::to_floats(stream, full);
    for (Placement p : {Replicate(), Shard(0), Partial()})
      redistribute_flat(stream, *rank.world, p, p, full, slice);
    EXPECT_EQ(ops::to_floats(stream, full), before);
    EXPECT_EQ(rank.device->copied_bytes(), 0);
  });
}

TEST_P(RedistributeFlat, OtherPairsAndSizesAreErrors) {
  launch(world(), [&](RankContext& rank) {
    Stream& stream = rank.device->compute();
    const auto [full, slice] = buffers(rank);
    Communicator& comm = *rank.world;
    EXPECT_THROW(redistribute_flat(stream, comm, Shard(0), Partial(), full, slice), NotSupported);
    EXPECT_THROW(redistribute_flat(stream, comm, Replicate(), Partial(), full, slice), NotSupported);
    EXPECT_THROW(redistribute_flat(stream, comm, Shard(1), Replicate(), full, slice), NotSupported);
    EXPECT_THROW(redistribute_flat(stream, comm, Shard(0), Replicate(), full, slice.flat(0, 3)),
                 ShapeMismatch);
    const Tensor other = Tensor::empty(*rank.device, {kSlice}, DType::i32, "s");
    EXPECT_THROW(redistribute_flat(stream, comm, Shard(0), Replicate(), full, other), ShapeMismatch);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, RedistributeFlat,
                         testing::Combine(testing::Values(1, 2, 3, 4), testing::Bool()));

}  // namespace
}  // namespace sherd
