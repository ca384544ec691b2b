// Mesh dimensions that mean nothing to a unit are refused: along them, ranks would train models of their own.

#include <sherd/fsdp/fully_shard.h>

#include "support/message_of.h"
#include "support/pieces.h"

namespace sherd::test {
namespace {

// Returns the error of wrapping a toy model; "" when it is accepted.
std::string wrapping(const std::vector<MeshDim>& dims, const FullyShardOptions& options,
                     const std::function<void(ToyModel&, const DeviceMesh&)>& before = nullptr,
                     const RootOptions& root = {}) {
  int ranks = 1;
  for (auto& d : dims) ranks *= d.size;
  std::string said;
  launch(ranks, [&](RankContext& r) {
    const DeviceMesh mesh(r.world, dims);
    ToyModel model(8, 8, 2);
    if (before) before(model, mesh);
    std::string mine;
    try {
      for (auto& b : model.blocks_) fully_shard(*b, mesh, options);
      fully_shard(model, mesh, options, root);
    } catch (const InvalidArgument& e) {
      mine = e.what();
    }
    if (r.world->rank() == 0) said = mine;
  });
  return said;
}

void cut_up(ToyModel& model, const DeviceMesh& mesh, const char* dim) {
  model.blocks_[0]->up_.set_tensor_shard({dim, 0, mesh.size(dim), mesh.coordinate(dim)});
}

TEST(MeshRules, ADimensionOfAnotherNameIsRefusedNamingItTheUnitsAndTheWayOut) {
  const std::string said = wrapping({{"dp_replicate", 2}, {"shard", 2}}, {});
  EXPECT_THAT(said, AllOf(HasSubstr("mesh dimension 'dp_replicate' of 2 ranks"),
                          HasSubstr("of units 'blocks.0', 'blocks.1', 'root'"),
                          HasSubstr("'blocks.0.norm.weight', 'blocks.0.up.weight', 'blocks.0.down.weight', "
                                    "'blocks.1.norm.weight' and 5 more are not cut")));
  EXPECT_THAT(said, AllOf(HasSubstr("name it as shard_dim, replicate_dim, or context_dim"),
                          HasSubstr("set_tensor_shard()")));
  EXPECT_EQ(wrapping({{"dp_replicate", 2}, {"shard", 2}}, {.replicate_dim = "dp_replicate"}), "");
  EXPECT_EQ(wrapping({{"replicate", 2}, {"shard", 2}, {"context", 2}}, {}), "");
  EXPECT_EQ(wrapping({{"shard", 2}, {"cp", 2}}, {.context_dim = "cp"}), "");
  EXPECT_EQ(wrapping({{"dp_replicate", 1}, {"shard", 2}}, {}), "") << "of one rank";
  EXPECT_THAT(wrapping({{"dp", 2}}, {}), HasSubstr("no dimension 'shard'"));
  EXPECT_THAT(wrapping({{"replicate", 2}, {"data", 2}, {"cp", 2}}, {.shard_dim = "data"}),
              AllOf(HasSubstr("'cp'"), Not(HasSubstr("dimension 'data' of"))));
}

TEST(MeshRules, TheTensorDimensionMayLeaveParametersWholeButMustCutSome) {
  const auto cut = [](ToyModel& m, const DeviceMesh& mesh) { cut_up(m, mesh, "tp"); };
  EXPECT_EQ(wrapping({{"shard", 2}, {"tp", 2}}, {}, cut), "");
  EXPECT_THAT(wrapping({{"shard", 2}, {"tp", 2}}, {}), HasSubstr("no parameter of the model is cut over it"));
  // Experts of one rank each, whose ranks see tokens of their own: what is whole must be reduced over it.
  const auto experts = [](ToyModel& m, const DeviceMesh& mesh) { cut_up(m, mesh, "expert"); };
  const std::string said = wrapping({{"shard", 2}, {"expert", 2}}, {}, experts);
  EXPECT_THAT(said, AllOf(HasSubstr("'blocks.0.norm.weight', 'blocks.0.down.weight'"),
                          Not(HasSubstr("'blocks.0.up.weight'"))));
  EXPECT_EQ(wrapping({{"shard", 2}, {"expert", 2}}, {.tensor_dim = "expert"}, experts), "");
}

TEST(MeshRules, FrozenAndIgnoredParametersAreNotAsked) {
  const auto freeze = [](ToyModel& m, const DeviceMesh&) {
    for (auto& [name, p] : m.named_parameters())
      if (name != "head.weight" && name != "gain.weight") p.freeze();
  };
  EXPECT_EQ(wrapping({{"own", 2}, {"shard", 1}}, {}, freeze, {.ignored = {"head.weight", "gain.weight"}}),
            "");
  EXPECT_THAT(wrapping({{"own", 2}, {"shard", 1}}, {}, freeze, {.ignored = {"head.weight"}}),
              AllOf(HasSubstr("'gain.weight' is not cut"), Not(HasSubstr("head.weight"))));
}

TEST(MeshRules, PiecesAreNotAveragedOverARootsRanksThatAreNotKnown) {
  const auto experts_alone = [](ToyModel& m, const DeviceMesh& mesh) {
    cut_up(m, mesh, "expert");
    for (auto& [name, p] : m.named_parameters())
      if (name != "blocks.0.up.weight") p.freeze();
  };
  const std::vector<MeshDim> mesh = {{"shard", 2}, {"expert", 2}};
  EXPECT_THAT(
      wrapping(mesh, {}, experts_alone),
      AllOf(HasSubstr("gradient_ranks of unit 'blocks.0' is 0, and 'blocks.0.up.weight' is a piece over mesh "
                      "dimension 'expert'"),
            HasSubstr("the root's mesh 'shard 2 x expert 2'"), HasSubstr("set gradient_ranks to")));
  EXPECT_EQ(wrapping(mesh, {.gradient_ranks = 4}, experts_alone), "");
  EXPECT_EQ(wrapping(mesh, {.tensor_dim = "expert"}, experts_alone), "");
  EXPECT_EQ(wrapping(mesh, {.replicate_dim = "expert"}, [](ToyModel&, const DeviceMesh&) {}), "");
}

TEST(MeshRules, AUnitOnPartOfTheRootsRanksIsRefused) {
  launch(4, [](RankContext& r) {
    const DeviceMesh mesh(r.world, {{"replicate", 2}, {"shard", 2}}), part = mesh.submesh({"shard"});
    ToyModel model(8, 8, 1);
    fully_shard(*model.blocks_[0], part);
    EXPECT_THAT(message_of<InvalidArgument>([&] { fully_shard(model, mesh); }),
                HasSubstr("unit 'blocks.0' is wrapped with mesh 'shard 2' of 2 ranks"));
  });
}

TEST(MeshRules, TheOnePieceOfAnotherMeshIsNotWrappedBesideTensorParallelRanks) {
  const auto experts = [](ToyModel& m, const DeviceMesh& mesh) {
    cut_up(m, mesh, "tp");
    m.blocks_[1]->up_.set_tensor_shard({"expert", 0, 1, 0});
  };
  EXPECT_THAT(wrapping({{"shard", 2}, {"tp", 2}}, {}, experts),
              AllOf(HasSubstr("'blocks.1.up.weight' is the one piece over mesh dimension 'expert'"),
                    HasSubstr("wrap it on a mesh of its own")));
  const auto alone = [](ToyModel& m, const DeviceMesh&) {
    m.blocks_[1]->up_.set_tensor_shard({"expert", 0, 1, 0});
  };
  EXPECT_EQ(wrapping({{"shard", 2}}, {}, alone), "");
}

}  // namespace
}  // namespace sherd::test
