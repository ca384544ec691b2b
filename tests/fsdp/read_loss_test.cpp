// A loss is averaged over elements and data-parallel ranks, and is the same number on every rank.
#include <gtest/gtest.h>

#include <cmath>

#include <sherd/fsdp/read_loss.h>

#include "support/rig.h"

namespace sherd::test {
namespace {

struct One : ModuleBase {
  Parameter w = param("w", {6, 4}, constant(1));
};

TEST(ReadLoss, AveragesOverElementsAndDataParallelRanks) {
  const std::vector<std::vector<MeshDim>> meshes = {
      {{"shard", 1}}, {{"shard", 3}}, {{"replicate", 2}, {"shard", 2}}, {{"shard", 2}, {"tp", 2}}};
  for (const auto& dims : meshes) {
    int ranks = 1;
    for (auto& d : dims) ranks *= d.size;
    launch(ranks, [&](RankContext& r) {
      const DeviceMesh mesh(r.world, dims);
      const bool tensor_parallel = mesh.has("tp");
      One model;
      if (tensor_parallel) model.w.set_tensor_shard({"tp", 0, 2, mesh.coordinate("tp")});
      fully_shard(model, mesh);
      // Data-parallel rank i has i + 1 losses of value i, and the last one (of several) none.
      const int data_ranks = tensor_parallel ? 2 : ranks,
                data_rank = tensor_parallel ? r.world->rank() / 2 : r.world->rank();
      double sum = 0, count = 0;
      int64_t mine = 0;
      for (int i = 0; i < data_ranks; ++i) {
        const int n = i > 0 && i + 1 == data_ranks ? 0 : i + 1;
        if (i == data_rank) mine = n;
        sum += i * n;
        count += n;
      }
      const Tensor losses = Tensor::empty(*r.device, {mine}, DType::f32, "test");
      if (mine > 0) ops::fill(r.device->compute(), losses, data_rank);
      EXPECT_EQ(read_loss(model, losses), sum / count);
      EXPECT_TRUE(std::isnan(read_loss(model, Tensor::empty(*r.device, {0}, DType::f32, "test"))));
      const Tensor scalar = Tensor::empty(*r.device, {1, 1}, DType::f32, "test");
      ops::fill(r.device->compute(), scalar, 0.5);
      EXPECT_EQ(read_loss(model, scalar), 0.5);
      EXPECT_THROW(read_loss(model, Tensor::empty(*r.device, {1}, DType::bf16, "test")), ShapeMismatch);
    });
  }
}

TEST(ReadLoss, NeedsAShardedRoot) {
  const One model;
  EXPECT_THROW(read_loss(model, {}), InvalidArgument);
}

}  // namespace
}  // namespace sherd::test
