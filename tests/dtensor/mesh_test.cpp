#include <sherd/dtensor/mesh.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rank_helpers.h"

namespace sherd {
namespace {

/// World ranks of a group, in group order.
std::vector<float> members(RankContext& rank, Communicator& group) {
  Stream& stream = rank.device->compute();
  const Tensor mine = make_tensor(rank, {1}, {static_cast<float>(rank.world->rank())});
  const Tensor all = Tensor::empty(*rank.device, {group.size()}, DType::f32, "test");
  group.all_gather(stream, all, mine);
  return ops::to_floats(stream, all);
}

TEST(DeviceMesh, LastDimensionIsInnermost) {
  launch(6, [](RankContext& rank) {
    const DeviceMesh mesh(rank.world, {{"replicate", 2}, {"shard", 3}});
    const int r = rank.world->rank();
    EXPECT_EQ(mesh.coordinate("replicate"), r / 3);
    EXPECT_EQ(mesh.coordinate("shard"), r % 3);
    EXPECT_EQ(mesh.size("shard"), 3);
    EXPECT_EQ(mesh.size(), 6);
    EXPECT_TRUE(mesh.has("shard"));
    EXPECT_FALSE(mesh.has("tp"));
    EXPECT_EQ(mesh.describe(), "replicate 2 x shard 3");
    const auto base = static_cast<float>(r / 3 * 3), column = static_cast<float>(r % 3);
    EXPECT_EQ(members(rank, *mesh.comm("shard")), (std::vector<float>{base, base + 1, base + 2}));
    EXPECT_EQ(members(rank, *mesh.comm("replicate")), (std::vector<float>{column, column + 3}));
  });
}

TEST(DeviceMesh, FlattenOrdersTheFirstNameOutermost) {
  launch(8, [](RankContext& rank) {
    const DeviceMesh mesh(rank.world, {{"a", 2}, {"b", 2}, {"c", 2}});
    const auto b = static_cast<float>(mesh.coordinate("b") * 2);
    EXPECT_EQ(members(rank, *mesh.flatten({"a", "c"})), (std::vector<float>{b, b + 1, b + 4, b + 5}));
    EXPECT_EQ(members(rank, *mesh.flatten({"c", "a"})), (std::vector<float>{b, b + 4, b + 1, b + 5}));
    EXPECT_EQ(members(rank, *mesh.flatten({"a", "b", "c"})), counting(8, 0));
    EXPECT_EQ(mesh.flatten({"a", "c"})->rank(), mesh.coordinate("a") * 2 + mesh.coordinate("c"));
    EXPECT_EQ(mesh.flatten({"a", "c"}), mesh.flatten({"a", "c"}));  // kept
    const DeviceMesh copy = mesh;
    EXPECT_EQ(copy.flatten({"a", "c"}), mesh.flatten({"a", "c"}));  // copies share
    EXPECT_EQ(mesh.flatten({"b"}), mesh.comm("b"));
    EXPECT_EQ(mesh.flatten({})->size(), 1);
  });
}

TEST(DeviceMesh, SubmeshKeepsTheOrderAndFixesTheOtherCoordinates) {
  launch(8, [](RankContext& rank) {
    const DeviceMesh mesh(rank.world, {{"a", 2}, {"b", 2}, {"c", 2}});
    const DeviceMesh sub = mesh.submesh({"c", "a"});
    EXPECT_EQ(sub.describe(), "a 2 x c 2");
    EXPECT_EQ(sub.coordinate("a"), mesh.coordinate("a"));
    EXPECT_EQ(sub.coordinate("c"), mesh.coordinate("c"));
    const auto b = static_cast<float>(mesh.coordinate("b") * 2);
    EXPECT_EQ(members(rank, *sub.world()), (std::vector<float>{b, b + 1, b + 4, b + 5}));
    EXPECT_EQ(members(rank, *sub.comm("c")), members(rank, *mesh.comm("c")));
    EXPECT_EQ(mesh.submesh({}).size(), 1);
  });
}

TEST(DeviceMesh, ErrorsNameAllOffendersAndTheKnownDimensions) {
  launch(2, [](RankContext& rank) {
    try {
      DeviceMesh(rank.world, {{"a", 0}, {"", 2}, {"b", 3}, {"b", 1}});
      ADD_FAILURE();
    } catch (const InvalidArgument& e) {
      for (const char* part : {"'a' has size 0", "has no name", "'b' is there twice", "has 2 ranks"})
        EXPECT_THAT(e.what(), testing::HasSubstr(part));
    }
    EXPECT_THROW(DeviceMesh(nullptr, {{"a", 2}}), InvalidArgument);
    const DeviceMesh mesh(rank.world, {{"data", 2}, {"tp", 1}});
    try {
      mesh.comm("shard");
      ADD_FAILURE();
    } catch (const InvalidArgument& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr("'shard'; it has: data, tp"));
    }
    EXPECT_THROW(mesh.size("x"), InvalidArgument);
    EXPECT_THROW(mesh.coordinate("x"), InvalidArgument);
    EXPECT_THROW((void)mesh.flatten({"data", "x"}), InvalidArgument);
    EXPECT_THROW((void)mesh.flatten({"data", "data"}), InvalidArgument);
    EXPECT_THROW((void)mesh.submesh({"x"}), InvalidArgument);
  });
}

}  // namespace
}  // namespace sherd
