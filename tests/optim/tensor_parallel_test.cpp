// Norms and clipping of parameters that tensor and expert parallelism cut.

#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <sherd/optim/whole/logical_matrix.h>

#include "support/message_of.h"
#include "support/pieces.h"
#include "support/rig.h"

namespace sherd::test {
namespace {

struct Figures {
  float norm = 0;
  int64_t zeros = 0;
  bool operator==(const Figures&) const = default;
};

// Expected figures of the whole model, element by element.
Figures expected() {
  double squares = 0;
  Figures f;
  for (const int64_t n : {24 * 5, 8 * 3, 7 * 8, 9, 3, 4 * 3 * 2})
    for (int64_t i = 0; i < n; ++i) {
      const double g = Pieces::gradient(i);
      squares += g * g;
      f.zeros += g == 0;
    }
  f.norm = static_cast<float>(std::sqrt(squares));
  return f;
}

TEST(TensorParallelClip, EveryElementCountsOnceWhateverTheMesh) {
  const Figures rough = expected();
  std::optional<Figures> want;
  for (const Spread spread :
       {Spread{}, Spread{.tp = 2}, Spread{.tp = 4, .experts = 4}, Spread{.shard = 2, .tp = 2, .experts = 4},
        Spread{.replicas = 2, .shard = 2, .tp = 2, .experts = 2}, Spread{.replicas = 2, .tp = 4}}) {
    for (const Strategy strategy : {Strategy::no_shard, Strategy::optim, Strategy::optim_grads_params}) {
      for (const Outer outer : {Outer::no_shard, Outer::optim}) {
        launch(spread.ranks(), [&](RankContext& r) {
          Pieces model(r, spread);
          model.wrap({.strategy = strategy, .outer = outer});
          model.run(*r.device);
          Stream& s = r.device->compute();
          const CommCounts before = r.world->counts();
          const auto stats = clip_grad_norm(model, 0);
          s.synchronize();
          auto counts = minus(r.world->counts(), before);
          const Figures got{stats->norm, stats->zeros};
          // Adding and dividing by powers of two is exact, so that the gradients are the same in bits.
          if (r.world->rank() == 0 && !want) want = got;
          r.world->barrier(s);
          s.synchronize();
          EXPECT_EQ(got, *want) << spread.ranks() << " ranks, " << name_of(strategy);
          EXPECT_NEAR(got.norm, rough.norm, 1e-5 * rough.norm);
          EXPECT_EQ(got.zeros, rough.zeros);
          std::set<std::string> dims;
          for (ParamGroup* g : runtime_of(model).groups()) {
            for (auto& d : g->sharded_over()) dims.insert(d);
            for (auto& p : g->params())
              if (p.tensor_shard() && p.tensor_shard()->parts > 1) dims.insert(p.tensor_shard()->mesh_dim);
          }
          EXPECT_EQ(counts["all_reduce"].calls, static_cast<int64_t>(dims.size()));

          const auto clipped = clip_grad_norm(model, 0.5);
          const auto again = clip_grad_norm(model, 0);
          s.synchronize();
          EXPECT_NEAR(again->norm, 0.5, 1e-5);
          EXPECT_EQ(clipped->norm, got.norm);
        });
      }
    }
  }
}

TEST(TensorParallelBlocks, ArePiecesUnlessAssignedWhole) {
  const Shape shape = {6, 4};
  const ShardLayout layout = ShardLayout::make({{"w", shape, CutClass::row}}, 1, {});
  const auto dims = [&](const RowBlocks& blocks, const TensorShard& shard) {
    std::vector<int> found;
    for (auto& m : logical_matrices("w", shape, blocks, shard, layout, 0)) found.push_back(m.tensor_dim);
    return found;
  };
  using Dims = std::vector<int>;
  EXPECT_EQ(dims({}, {"tp", 0, 2, 1}), Dims({0}));
  EXPECT_EQ(dims(stacked_blocks({2, 4}), {"tp", 0, 2, 1}), Dims({0, 0}));
  EXPECT_EQ(dims(head_blocks(3, 2), {"tp", 0, 2, 1}), Dims({-1, -1, -1}));
  EXPECT_EQ(dims(head_blocks(3, 2), {"tp", 1, 2, 1}), Dims({1, 1, 1})) << "columns cut every head";
  EXPECT_EQ(dims(interleaved_blocks(6, 2), {"tp", 0, 2, 1}), Dims({0, 0}));
}

TEST(TensorParallelBlocks, AssignedWholeAreASetOverAllRanks) {
  const ShardLayout layout = ShardLayout::make({{"w", {10, 4}, CutClass::row}}, 1, {});
  const RowBlocks heads = {{"head0.k", 0, 2, 0, 1, true},
                           {"head0.v", 2, 3, 0, 1},
                           {"head1.k", 5, 2, 0, 1},
                           {"head1.v", 7, 3, 0, 1}};
  using Set = std::tuple<std::string, std::string, int64_t, int64_t>;  // label, set, index, size
  const auto sets = [&](const Shape& shape, const RowBlocks& blocks, std::optional<TensorShard> shard) {
    std::vector<Set> found;
    for (auto& m : logical_matrices("w", shape, blocks, shard, layout, 0))
      found.emplace_back(m.block, m.stack, m.stack_index, m.stack_size);
    return found;
  };
  using Sets = std::vector<Set>;
  EXPECT_EQ(sets({10, 4}, heads, {}), Sets({{"head0.k", "2x4", 0, 2},
                                            {"head0.v", "3x4", 0, 2},
                                            {"head1.k", "2x4", 1, 2},
                                            {"head1.v", "3x4", 1, 2}}));
  EXPECT_EQ(sets({10, 4}, heads, TensorShard{"tp", 0, 3, 2}), Sets({{"head0.k of tp 2", "2x4", 4, 6},
                                                                    {"head0.v of tp 2", "3x4", 4, 6},
                                                                    {"head1.k of tp 2", "2x4", 5, 6},
                                                                    {"head1.v of tp 2", "3x4", 5, 6}}));
  EXPECT_EQ(sets({2, 4, 4}, head_blocks(2, 2), TensorShard{"expert", 0, 2, 1}),
            Sets({{"[2].head0", "2x4", 4, 8},
                  {"[2].head1", "2x4", 5, 8},
                  {"[3].head0", "2x4", 6, 8},
                  {"[3].head1", "2x4", 7, 8}}));
  EXPECT_EQ(sets({5, 4}, stacked_blocks({2, 3}, {"q", "k"}), {}), Sets({{"q", "q", 0, 0}, {"k", "k", 0, 0}}));
  EXPECT_EQ(sets({2, 5, 4}, {}, TensorShard{"expert", 0, 2, 1}),
            Sets({{"[2]", "", 2, 4}, {"[3]", "", 3, 4}}));
}

TEST(TensorParallelRouting, ShowsWholeShapes) {
  launch(2, [](RankContext& r) {
    Pieces model(r, {.tp = 2, .experts = 2});
    const std::string table = route(model).format();
    for (const char* words : {"[24, 5]", "[7, 8]", "[4, 3, 2]", "AdamW updates 12 elements, Muon 224"})
      EXPECT_THAT(table, HasSubstr(words));
  });
}

}  // namespace
}  // namespace sherd::test
