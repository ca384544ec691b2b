// Meshes: wrong products and names, dimensions too many, other ones on other ranks or for other units.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "misuse/training.h"

namespace sherd::misuse {
namespace {

std::string text_of(const std::vector<MeshDim>& dims) {
  std::string text;
  for (auto& d : dims) text += fmt::format("{}'{}' {}", text.empty() ? "" : " x ", d.name, d.size);
  return text;
}

std::vector<MeshDim> random_dims(Dice& dice, int ranks) {
  const std::vector<std::string> names = {"shard", "shard", "replicate", "replicate", "dp",
                                          "tp",    "Shard", "replica",   "context",   ""};
  std::vector<MeshDim> dims;
  int left = ranks;
  const int count = 1 + dice.below(3);
  for (int i = 0; i < count; ++i) {
    int size = i + 1 == count ? left : (left % 2 == 0 && dice.chance(50) ? 2 : 1);
    if (dice.chance(8)) size = dice.of<int>({0, -1, 3, 1 << 30});
    dims.push_back({dice.of(names), size});
    if (size > 0 && left % size == 0) left /= size;
  }
  return dims;
}

struct Choice {
  std::vector<MeshDim> dims;
  FullyShardOptions options;
};

Case mesh_case(uint64_t seed) {
  Dice dice(seed);
  Plan plan = random_plan(dice);
  plan.ranks = dice.of<int>({1, 2, 4, 4});  // so that the reference on one dimension has the same bits
  plan.replicas = plan.accumulate = 1;
  plan.algorithm = Algorithm::adamw;
  Choice all{random_dims(dice, plan.ranks), plan.options};
  if (dice.chance(60)) all.dims.back().name = "shard";
  const auto misname = [&](FullyShardOptions& o) {
    if (dice.chance(15)) o.shard_dim = dice.of<std::string>({"replicate", "dp", "nothing", ""});
    if (dice.chance(15)) o.replicate_dim = dice.of<std::string>({"shard", "dp", "replica", ""});
  };
  misname(all.options);
  // One rank, or one unit, may have ideas of its own.
  Choice other = all;
  const int who = dice.below(6);  // 0: a rank; 1: a unit; else none
  if (who < 2) {
    other.dims = random_dims(dice, plan.ranks);
    other.dims.back().name = "shard";
  }
  const int odd_rank = dice.below(plan.ranks);
  std::string name = fmt::format("mesh {}, shard '{}', replicate '{}'; {}", text_of(all.dims),
                                 all.options.shard_dim, all.options.replicate_dim, plan.describe());
  if (who == 0) name += fmt::format("; rank {} has {}", odd_rank, text_of(other.dims));
  if (who == 1) name += fmt::format("; unit blocks.1 has {}", text_of(other.dims));
  return {name, [=]() -> std::string {
            Plan flat = plan;
            flat.options.strategy = Strategy::no_shard;
            flat.options.layout = LayoutPolicy::ragged;
            const Weights want = reference(flat);
            Results results(plan.ranks);
            sherd::launch(plan.ranks, watched(), [&](RankContext& rank) {
              const Choice& mine = who == 0 && rank.world->rank() == odd_rank ? other : all;
              const DeviceMesh mesh(rank.world, mine.dims);
              std::optional<DeviceMesh> second;
              if (who == 1) second.emplace(rank.world, other.dims);
              Training training(rank, plan, mesh, mine.options, second ? &*second : nullptr);
              for (int step = 0; step < plan.steps; ++step) training.step(step);
              results.put(rank.world->rank(), training.weights());
            });
            return results.compared_with(want);
          }};
}

}  // namespace

std::vector<Case> mesh_cases(uint64_t seed, int count) {
  std::vector<Case> cases;
  for (int i = 0; i < count; ++i) cases.push_back(mesh_case(seed + static_cast<uint64_t>(i)));
  return cases;
}

}  // namespace sherd::misuse
