// Mesh dimensions that split and repeat values, for every strategy, without devices and ranks.

#include <sherd/fsdp/shard_axes.h>

#include "support/message_of.h"

namespace sherd::test {
namespace {

// The header's example: the rank at (1, 2, 0).
const std::vector<MeshAxis> kMesh = {{"replicate", 2, 1}, {"shard", 4, 2}, {"tp", 2, 0}};

TEST(ShardAxes, TheExampleOfTheHeaderIsSo) {
  const ShardAxes a = ShardAxes::of(kMesh, {.strategy = Strategy::optim, .outer = Outer::optim});
  EXPECT_THAT(a.weights_split, IsEmpty());
  EXPECT_THAT(a.gradient_split, ElementsAre("shard", "replicate"));
  EXPECT_THAT(a.state_split, ElementsAre("shard", "replicate"));
  EXPECT_THAT(a.state_repeated, IsEmpty());
  EXPECT_EQ(a.world(), 8);
  EXPECT_EQ(a.cell(), 5);
  EXPECT_EQ(a.divisor, 8);
  EXPECT_EQ(a.holders_of({}).count, 2);
}

TEST(ShardAxes, StrategiesSplitWhatTheTableSays) {
  struct Row {
    Strategy strategy;
    std::vector<std::string> weights, gradient, state, repeated;
    int world, cell;
  };
  const std::vector<std::string> none, shard = {"shard"}, replicate = {"replicate"},
                                       both = {"shard", "replicate"};
  for (const Row& row : {Row{Strategy::no_shard, none, none, none, both, 1, 0},
                         Row{Strategy::optim, none, shard, shard, replicate, 4, 2},
                         Row{Strategy::optim_grads, none, shard, shard, replicate, 4, 2},
                         Row{Strategy::optim_grads_params, shard, shard, shard, replicate, 4, 2}}) {
    SCOPED_TRACE(name_of(row.strategy));
    const ShardAxes a = ShardAxes::of(kMesh, {.strategy = row.strategy});
    EXPECT_EQ(a.weights_split, row.weights);
    EXPECT_EQ(a.gradient_split, row.gradient);
    EXPECT_EQ(a.state_split, row.state);
    EXPECT_EQ(a.state_repeated, row.repeated);
    EXPECT_EQ(a.world(), row.world);
    EXPECT_EQ(a.cell(), row.cell);
  }
}

TEST(ShardAxes, ADimensionOfOneRankOrNoneSplitsNothing) {
  const ShardAxes a = ShardAxes::of({{"shard", 1, 0}}, {.outer = Outer::optim});
  EXPECT_THAT(a.state_split, IsEmpty());
  EXPECT_THAT(a.state_repeated, IsEmpty());
  EXPECT_THAT(a.replicate, IsEmpty());
  EXPECT_EQ(a.world(), 1);
  EXPECT_EQ(a.divisor, 1);
}

TEST(ShardAxes, IgnoredParametersAreWholeOnEveryRank) {
  const ShardAxes a = ShardAxes::of(kMesh, {.gradient_ranks = 3}, true);
  EXPECT_THAT(a.state_split, IsEmpty());
  EXPECT_THAT(a.state_repeated, IsEmpty());
  EXPECT_EQ(a.divisor, 1);
  EXPECT_EQ(a.world(), 1);
  EXPECT_THAT(a.holders_of({}).dims, ElementsAre("replicate", "shard", "tp"));
}

TEST(ShardAxes, GradientRanksReplaceTheDivisorAlone) {
  const ShardAxes a = ShardAxes::of(kMesh, {.gradient_ranks = 16});
  EXPECT_EQ(a.divisor, 16);
  EXPECT_EQ(a.world(), 4);
}

TEST(ShardAxes, TheShardGroupIsAListOfDimensions) {
  // Data and context parallelism multiplied into one shard group, the first name outermost.
  const std::vector<MeshAxis> mesh = {{"replicate", 2, 1}, {"data", 3, 2}, {"context", 4, 1}, {"tp", 2, 1}};
  const ShardAxes a =
      ShardAxes::of(mesh, {"data", "context"}, {"replicate"}, Strategy::optim_grads_params, Outer::no_shard);
  EXPECT_EQ(a.shard_ranks, 12);
  EXPECT_EQ(a.shard_index, 2 * 4 + 1);
  EXPECT_THAT(a.state_split, ElementsAre("data", "context"));
  EXPECT_THAT(a.state_repeated, ElementsAre("replicate"));
  EXPECT_EQ(a.divisor, 24);
  EXPECT_EQ(a.cell(), 9);
  EXPECT_EQ(ShardAxes::of(mesh, {"context", "data"}, {}, Strategy::optim, Outer::no_shard).cell(), 1 * 3 + 2);
}

TEST(ShardAxes, HoldersAreTheRanksAlongAllOtherDimensions) {
  const ShardAxes a = ShardAxes::of({{"replicate", 2, 1}, {"shard", 4, 2}, {"tp", 2, 1}}, {});
  const Holders whole = a.holders_of({});
  EXPECT_THAT(whole.dims, ElementsAre("replicate", "tp"));
  EXPECT_EQ(whole.count, 4);
  EXPECT_EQ(whole.index, 1 * 2 + 1);
  const TensorShard cut{"tp", 0, 2, 1};
  EXPECT_THAT(a.spread_over(cut), ElementsAre("shard", "tp"));
  EXPECT_THAT(a.holders_of(cut).dims, ElementsAre("replicate"));
  EXPECT_EQ(a.holders_of(cut).count, 2);
  EXPECT_EQ(a.holders_of(cut).index, 1);
  // A single piece is the whole parameter.
  EXPECT_THAT(a.holders_of(TensorShard{"tp", 0, 1, 0}).dims, ElementsAre("replicate", "tp"));
}

}  // namespace
}  // namespace sherd::test
