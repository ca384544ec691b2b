// Lists of modules that stay where they are, and wrapping all modules of a type in one call.

#include <deque>
#include <type_traits>

#include <sherd/fsdp/module_list.h>

#include "support/message_of.h"
#include "support/rig.h"

namespace sherd::test {
namespace {

// Never run: only names and units matter here.
struct Part : ModuleBase {};
struct Leaf : Part {
  explicit Leaf(int64_t width = 3) { weight = param("weight", {width}, constant(1)); }
  Parameter weight;
};
struct Pair : Part {
  explicit Pair(int64_t width) : left(width), right(width) {
    child("left", left);
    child("right", right);
  }
  Leaf left, right;
};
struct Net : ModuleBase {
  explicit Net(int count) {
    child("pairs", pairs);
    for (int i = 0; i < count; ++i) pairs.emplace_back(i + 2);
    head = param("head", {5}, constant(0));
  }
  ModuleList<Pair> pairs;
  Parameter head;
};

std::vector<std::string> units_of(const ModuleBase& root) {
  std::vector<std::string> names;
  for (auto& u : runtime_of(root).units()) names.push_back(u->name());
  return names;
}

TEST(ModuleList, NamesItsModulesByNumberAndLeavesThemInPlace) {
  Net net(2);
  const Pair* first = &net.pairs[0];
  for (int i = 0; i < 100; ++i) net.pairs.emplace_back(1);
  EXPECT_EQ(&net.pairs.front(), first);
  EXPECT_EQ(net.pairs.size(), 102u);
  std::vector<std::string> names;
  for (auto& [name, p] : net.named_parameters()) names.push_back(name);
  EXPECT_THAT(std::vector<std::string>(names.begin(), names.begin() + 4),
              ElementsAre("head", "pairs.0.left.weight", "pairs.0.right.weight", "pairs.1.left.weight"));
  EXPECT_EQ(names.back(), "pairs.101.right.weight");
}

TEST(ModuleList, IsAListOfUnits) {
  launch(2, [](RankContext& r) {
    Net net(3);
    const DeviceMesh mesh = mesh_of(r);
    fully_shard(net.pairs, mesh);
    fully_shard(net, mesh);
    EXPECT_THAT(units_of(net), ElementsAre("pairs.0", "pairs.1", "pairs.2", "root"));
  });
}

TEST(ModuleList, AnEmptyOneIsNotAUnit) {
  launch(1, [](RankContext& r) {
    Net net(0);
    const DeviceMesh mesh = mesh_of(r);
    fully_shard(net.pairs, mesh);
    fully_shard(net, mesh);
    EXPECT_THAT(units_of(net), ElementsAre("root"));
  });
}

// A registered module is known by its address: the compiler refuses what would move it.
static_assert(!std::is_copy_constructible_v<Pair> && !std::is_move_constructible_v<Pair>);
static_assert(!std::is_move_constructible_v<ModuleList<Pair>> &&
              !std::is_move_assignable_v<ModuleList<Pair>>);

TEST(ModuleList, OtherContainersThatMoveNothingDoAsWell) {
  struct Own : ModuleBase {
    Own() : fixed(2) {
      for (size_t i = 0; i < fixed.size(); ++i) child("fixed." + std::to_string(i), fixed[i]);
      for (int i = 0; i < 2; ++i) child("grown." + std::to_string(i), grown.emplace_back(4));
    }
    std::vector<Leaf> fixed;
    std::deque<Leaf> grown;
  };
  launch(1, [](RankContext& r) {
    Own net;
    const DeviceMesh mesh = mesh_of(r);
    fully_shard(net.fixed, mesh);
    fully_shard(net.grown, mesh);
    fully_shard(net, mesh);
    EXPECT_THAT(units_of(net), ElementsAre("fixed.0", "fixed.1", "grown.0", "grown.1", "root"));
  });
}

TEST(FullyShardAll, WrapsEveryModuleOfATypeBelowTheRoot) {
  launch(2, [](RankContext& r) {
    const DeviceMesh mesh = mesh_of(r);
    Net by_pair(2), by_leaf(2), nested(1);
    EXPECT_EQ(fully_shard_all<Pair>(by_pair, mesh), 2);
    fully_shard(by_pair, mesh);
    EXPECT_THAT(units_of(by_pair), ElementsAre("pairs.0", "pairs.1", "root"));
    EXPECT_EQ(fully_shard_all<Leaf>(by_leaf, mesh, {.cast_inputs = false}), 4);
    fully_shard(by_leaf, mesh);
    EXPECT_THAT(units_of(by_leaf),
                ElementsAre("pairs.0.left", "pairs.0.right", "pairs.1.left", "pairs.1.right", "root"));
    // All of a base: pairs and leaves are units inside of each other; the list itself is none.
    EXPECT_EQ(fully_shard_all<Part>(nested, mesh), 3);
    fully_shard(nested, mesh);
    EXPECT_THAT(units_of(nested), ElementsAre("pairs.0", "pairs.0.left", "pairs.0.right", "root"));
  });
}

TEST(FullyShard, RootOptionsOfAnInnerModuleAreRefused) {
  launch(1, [](RankContext& r) {
    const DeviceMesh mesh(r.world, {{"shard", 1}});
    Net net(1);
    EXPECT_THROW(fully_shard(net.pairs[0], mesh, {}, {.seed = 1}), InvalidArgument);
    EXPECT_EQ(net.pairs[0].wrap(), nullptr);
    fully_shard(net.pairs[0], mesh);
    fully_shard(net, mesh, {}, {.seed = 1});
    EXPECT_THAT(units_of(net), ElementsAre("pairs.0", "root"));
  });
}

TEST(FullyShardAll, AConditionSeesNamesAndModules) {
  launch(1, [](RankContext& r) {
    const DeviceMesh mesh = mesh_of(r);
    Net net(3);
    const auto odd = [](const std::string& name, ModuleBase&) {
      return name == "pairs.1" || name == "pairs.2.left";
    };
    EXPECT_EQ(fully_shard_all(net, odd, mesh), 2);
    fully_shard(net, mesh);
    EXPECT_THAT(units_of(net), ElementsAre("pairs.1", "pairs.2.left", "root"));
  });
}

TEST(FullyShardAll, ChoosingNoneOrSomeTwiceIsAnErrorThatWrapsNothing) {
  launch(1, [](RankContext& r) {
    const DeviceMesh mesh = mesh_of(r);
    Net net(2);
    EXPECT_THROW(fully_shard_all<ToyBlock>(net, mesh), InvalidArgument);
    fully_shard(net.pairs[1], mesh);
    EXPECT_THAT(message_of<InvalidArgument>([&] { fully_shard_all<Pair>(net, mesh); }),
                AllOf(HasSubstr("'pairs.1' is wrapped already"), ::testing::Not(HasSubstr("pairs.0"))));
    EXPECT_EQ(net.pairs[0].wrap(), nullptr);
    fully_shard(net, mesh);
    EXPECT_THAT(units_of(net), ElementsAre("pairs.1", "root"));
  });
}

}  // namespace
}  // namespace sherd::test
