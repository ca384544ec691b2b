// Positions of the elements of a tensor-parallel piece in the whole parameter, against brute force; and
// initial values of such pieces.
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <mutex>

#include "optim/whole_tensors.h"
#include "support/message_of.h"
#include "support/pieces.h"

namespace sherd::test {
namespace {

struct ShardCase {
  std::string name;
  Shape local;
  RowBlocks blocks;
  int dim = 0, parts = 1;
  bool cut_by_block = false;  // what must come of it
};

std::vector<ShardCase> shard_cases() {
  return {
      {"vector", {5}, {}, 0, 3},
      {"rows", {4, 3}, {}, 0, 2},
      {"columns", {4, 3}, {}, 1, 3},
      {"one part", {4, 3}, stacked_blocks({1, 3}), 0, 1, true},
      {"q, k and v", {9, 2}, stacked_blocks({3, 3, 3}), 0, 2, true},
      {"uneven blocks, one empty", {7, 3}, stacked_blocks({1, 0, 4, 2}), 0, 4, true},
      {"columns of blocks", {6, 2}, stacked_blocks({2, 4}), 1, 2},
      {"heads", {6, 2}, head_blocks(3, 2), 0, 2},
      {"interleaved", {6, 2}, interleaved_blocks(6, 2), 0, 2},
      {"grouped queries", {16, 2}, grouped_query_blocks(2, 2, 2), 0, 2},
      {"one group of queries", {8, 2}, grouped_query_blocks(1, 2, 2), 0, 4},
      {"experts", {2, 3, 4}, {}, 0, 3},
      {"experts with blocks", {2, 4, 3}, stacked_blocks({1, 3}), 0, 2},
      {"rows of experts", {2, 3, 4}, {}, 1, 2},
      {"rows of experts by block", {3, 5, 2}, stacked_blocks({2, 3}), 1, 2, true},
      {"columns of experts", {2, 3, 4}, {}, 2, 2},
      {"columns of experts with blocks", {2, 5, 2}, stacked_blocks({2, 3}), 2, 3},
      {"four dimensions", {2, 3, 2, 3}, {}, 2, 2},
  };
}

// Global flat index of every local element, coordinate by coordinate.
std::vector<int64_t> brute_force(const ShardCase& c, int index) {
  const size_t d = static_cast<size_t>(c.dim);
  Shape global = c.local;
  global[d] *= c.parts;
  std::vector<int64_t> where;
  for (int64_t i = 0; i < numel_of(c.local); ++i) {
    Shape at(c.local.size());
    int64_t rest = i;
    for (size_t k = at.size(); k-- > 0; rest /= c.local[k]) at[k] = rest % c.local[k];
    int64_t moved = index * c.local[d] + at[d];
    if (c.cut_by_block) {
      int64_t global_begin = 0;
      for (auto& b : c.blocks) {
        if (at[d] >= b.begin && at[d] < b.begin + b.size)
          moved = global_begin + index * b.size + at[d] - b.begin;
        global_begin += b.size * c.parts;
      }
    }
    at[d] = moved;
    int64_t flat = 0;
    for (size_t k = 0; k < at.size(); ++k) flat = flat * global[k] + at[k];
    where.push_back(flat);
  }
  return where;
}

TEST(TensorShardMap, TheExampleOfTheHeaderIsSo) {
  const TensorShard second{"tp", 0, 2, 1};
  const ParamRange all{ParamIndex(0), ParamIndex(6 * 8)};
  const auto rows = [&](const RowBlocks& blocks) {  // first global row and rows of each box
    std::vector<std::pair<int64_t, int64_t>> found;
    for (const Box& b : global_boxes({6, 8}, blocks, second, all)) found.emplace_back(b.offset[0], b.size[0]);
    return found;
  };
  using Rows = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(rows(stacked_blocks({2, 2, 2})), (Rows{{2, 2}, {6, 2}, {10, 2}}));
  EXPECT_EQ(rows(head_blocks(3, 2)), (Rows{{6, 6}}));
}

TEST(TensorShardMap, RunsAndBoxesEqualBruteForceForEveryInterval) {
  for (const ShardCase& c : shard_cases()) {
    std::vector<int> covered(static_cast<size_t>(numel_of(c.local) * c.parts), 0);
    for (int index = 0; index < c.parts; ++index) {
      const TensorShard shard{"tp", c.dim, c.parts, index};
      const Shape global = global_shape(c.local, shard);
      ASSERT_EQ(numel_of(global), static_cast<int64_t>(covered.size())) << c.name;
      const std::vector<int64_t> want = brute_force(c, index);
      for (int64_t i : want) ++covered[static_cast<size_t>(i)];
      const int64_t n = numel_of(c.local);
      for (int64_t begin = 0; begin <= n; ++begin) {
        for (int64_t end = begin; end <= n; ++end) {
          const ParamRange range{ParamIndex(begin), ParamIndex(end)};
          int64_t at = begin;
          const GlobalRun* last = nullptr;
          const auto runs = global_runs(c.local, c.blocks, shard, range);
          for (auto& run : runs) {
            ASSERT_EQ(run.local.value, at) << c.name;
            ASSERT_GT(run.count, 0) << c.name;
            if (last != nullptr) {
              ASSERT_NE(last->global + last->count, run.global) << c.name << ": not merged";
            }
            for (int64_t i = 0; i < run.count; ++i, ++at)
              ASSERT_EQ(run.global.value + i, want[static_cast<size_t>(at)]) << c.name << " " << at;
            last = &run;
          }
          ASSERT_EQ(at, end) << c.name;
          at = begin;
          for (auto& box : global_boxes(c.local, c.blocks, shard, range)) {
            for (int64_t i = 0; i < numel_of(box.size); ++i, ++at) {
              int64_t rest = i, flat = 0, stride = 1;
              for (size_t k = global.size(); k-- > 0; rest /= box.size[k], stride *= global[k])
                flat += (box.offset[k] + rest % box.size[k]) * stride;
              ASSERT_EQ(flat, want[static_cast<size_t>(at)]) << c.name << " " << at;
            }
          }
          ASSERT_EQ(at, end) << c.name;
        }
      }
    }
    for (int times : covered) ASSERT_EQ(times, 1) << c.name << ": every global element lies on one rank";
  }
}

TEST(TensorShardMap, BoxesAreAsFewAsTheCutAllows) {
  const TensorShard rows{"tp", 0, 2, 1}, columns{"tp", 1, 2, 1};
  const ParamRange all{ParamIndex(0), ParamIndex(24)};
  EXPECT_EQ(global_boxes({8, 3}, {}, rows, all), (std::vector<Box>{{{8, 0}, {8, 3}}}));
  EXPECT_EQ(global_boxes({8, 3}, {}, columns, all), (std::vector<Box>{{{0, 3}, {8, 3}}}));
  EXPECT_EQ(global_boxes({8, 3}, stacked_blocks({2, 6}), rows, all),
            (std::vector<Box>{{{2, 0}, {2, 3}}, {{10, 0}, {6, 3}}}));
}

TEST(TensorShardInit, TheSameSeedGivesTheSameGlobalWeights) {
  std::map<std::string, std::vector<float>> want;
  for (const Spread spread : {Spread{}, Spread{.tp = 2}, Spread{.shard = 3, .tp = 2, .experts = 2},
                              Spread{.replicas = 2, .shard = 1, .tp = 4, .experts = 4}}) {
    for (const LayoutPolicy layout : {LayoutPolicy::ragged, LayoutPolicy::even_rows}) {
      OwnedValues got;
      launch(spread.ranks(), [&](RankContext& r) {
        Pieces model(r, spread);
        model.wrap({.layout = layout}, {.seed = 17});
        for (auto& [name, p] : model.named_parameters())
          got.add(p, name, test::whole(p, p.shard(), r.device->compute()));
      });
      if (want.empty()) want = got.values();
      EXPECT_EQ(got.values(), want) << spread.ranks() << " ranks";
    }
  }
}

TEST(TensorShardCheck, AMeshThatDoesNotFitIsRefusedNamingEveryParameter) {
  launch(2, [](RankContext& r) {
    const DeviceMesh none(r.world, {{"shard", 2}}), small(r.world, {{"shard", 2}, {"tp", 1}});
    Pieces model(r, {.tp = 2});
    for (auto* mesh : {&none, &small}) {
      try {
        fully_shard(model, *mesh);
        FAIL();
      } catch (const InvalidArgument& e) {
        for (const char* name : {"'qkv'", "'rows'", "'columns'"}) EXPECT_THAT(e.what(), HasSubstr(name));
        for (const char* name : {"'whole'", "'experts.up'"}) EXPECT_THAT(e.what(), Not(HasSubstr(name)));
        EXPECT_THAT(e.what(), HasSubstr(mesh == &none ? "has no such dimension" : "rank 0 of 1 along it"));
      }
    }
    model.wrap();  // as before the first wrap: the right mesh is still taken
  });
}

TEST(TensorShardCheck, ASinglePieceNeedsNoMeshDimension) {
  launch(2, [](RankContext& r) {
    ToyModel model(8, 12, 1);
    model.blocks_[0]->up_.set_tensor_shard({"tp", 0, 1, 0});
    fully_shard(model, mesh_of(r));
  });
}

TEST(TensorShardCheck, RanksThatCutDifferentlyAreFound) {
  EXPECT_THROW(launch(2,
                      [](RankContext& r) {
                        ToyModel model(8, 8, 1);
                        // Square: the local shape is the same either way.
                        model.blocks_[0]->up_.set_tensor_shard({"tp", r.world->rank(), 2, r.world->rank()});
                        fully_shard(model, DeviceMesh(r.world, {{"shard", 1}, {"tp", 2}}));
                      }),
               ShapeMismatch);
}

TEST(TensorShardCheck, DealtBlocksOnSomeRanksOnlyAreFound) {
  EXPECT_THROW(launch(2,
                      [](RankContext& r) {
                        ToyModel model(8, 8, 1);
                        model.blocks_[0]->up_.set_row_blocks(r.world->rank() == 0 ? head_blocks(2, 4)
                                                                                  : stacked_blocks({4, 4}));
                        fully_shard(model, mesh_of(r));
                      }),
               ShapeMismatch);
}

TEST(TensorShardCheck, ADimensionThatShardsOrReducesCannotCutAsWell) {
  launch(4, [](RankContext& r) {
    const DeviceMesh mesh(r.world, {{"expert", 2}, {"shard", 2}});
    for (const char* dim : {"shard", "expert"}) {
      ToyModel model(8, 8, 1);
      model.blocks_[0]->up_.set_tensor_shard({dim, 0, 2, mesh.coordinate(dim)});
      fully_shard(*model.blocks_[0], mesh, {.replicate_dim = "expert"});
      EXPECT_THAT(
          message_of<InvalidArgument>([&] { fully_shard(model, mesh, {.replicate_dim = "expert"}); }),
          ::testing::AllOf(HasSubstr("'blocks.0.up.weight' is piece"),
                           HasSubstr(*dim == 's' ? "the shard dimension" : "the replicate dimension")));
    }
  });
}

// Gradients of `value` everywhere.
struct Constant : nn::Module<Constant> {
  Constant(Shape shape, float v) : weight(param("weight", std::move(shape), normal(1))), value(v) {}
  Parameter weight;
  float value;
  virtual nn::Var forward(const nn::Var& x) {
    return with_gradients(x, {weight}, [this, s = &x.stream()] { ops::fill(*s, weight.grad(), value); });
  }
};

TEST(TensorShardReduce, UnitsOfOneMeshMayReduceOverDifferentDimensions) {
  launch(4, [](RankContext& r) {
    struct Root : Constant {
      explicit Root(float v) : Constant({10}, v), experts({3, 4}, v) { child("experts", experts); }
      Constant experts;
      nn::Var forward(const nn::Var& x) override { return experts(Constant::forward(x)); }
    };
    const DeviceMesh mesh(r.world, {{"expert", 2}, {"shard", 2}});
    for (const Strategy strategy : {Strategy::no_shard, Strategy::optim_grads_params}) {
      Root model(static_cast<float>(r.world->rank() + 1));
      model.experts.weight.set_tensor_shard({"expert", 0, 2, mesh.coordinate("expert")});
      fully_shard(model.experts, mesh, {.strategy = strategy});
      fully_shard(model, mesh, {.strategy = strategy, .replicate_dim = "expert"});
      run_pass(model, Tensor::empty(*r.device, {1}, DType::f32, "test"));
      Stream& s = r.device->compute();
      for (float g : ops::to_floats(s, model.weight.grad_shard()))
        EXPECT_EQ(g, (1 + 2 + 3 + 4) / 4.0f) << "over both dimensions";
      const float own = mesh.coordinate("expert") == 0 ? 1 + 2 : 3 + 4;
      for (float g : ops::to_floats(s, model.experts.weight.grad_shard()))
        EXPECT_EQ(g, own / 4) << "over the ranks with the same experts";
    }
  });
}

// Two experts or four in a block's unit, which is in the root's. Every rank's gradients are its rank + 1.
struct Nested : Constant {
  Nested(float v, int parts) : Constant({8}, v), block(v, parts) { child("block", block); }
  struct Block : Constant {
    Block(float v, int parts) : Constant({5}, v), experts({4 / parts, 3}, v) { child("experts", experts); }
    Constant experts;
    nn::Var forward(const nn::Var& x) override { return experts(Constant::forward(x)); }
  };
  Block block;
  nn::Var forward(const nn::Var& x) override { return block(Constant::forward(x)); }
};

TEST(TensorShardReduce, ExpertsAreAveragedOverTheRootsRanks) {
  struct Setting {
    std::vector<MeshDim> root;
    int parts;        // of the experts
    float batches;    // ranks with a batch of their own
    int of_root = 0;  // its gradient_ranks
  };
  for (const Setting& c :
       {Setting{{{"shard", 4}}, 1, 4}, Setting{{{"shard", 4}}, 2, 4}, Setting{{{"shard", 4}}, 4, 4},
        Setting{{{"shard", 4}}, 2, 1, 1}, Setting{{{"replicate", 2}, {"shard", 2}}, 2, 4},
        Setting{{{"replicate", 4}, {"shard", 1}}, 4, 4}, Setting{{{"shard", 2}, {"tp", 2}}, 1, 2},
        Setting{{{"shard", 2}, {"tp", 2}}, 2, 2}, Setting{{{"shard", 2}, {"tp", 2}}, 4, 2},
        Setting{{{"shard", 1}, {"tp", 4}}, 2, 1}, Setting{{{"replicate", 2}, {"shard", 1}, {"tp", 2}}, 4, 2}})
    for (const Strategy strategy : {Strategy::no_shard, Strategy::optim_grads_params})
      launch(4, [&](RankContext& r) {
        const DeviceMesh mesh(r.world, c.root),
            of_experts(r.world, {{"expert_shard", 4 / c.parts}, {"expert", c.parts}});
        SCOPED_TRACE(fmt::format("root on {}, experts on {}, {}", mesh.describe(), of_experts.describe(),
                                 name_of(strategy)));
        const int me = r.world->rank();
        Nested model(static_cast<float>(me + 1), c.parts);
        if (mesh.has("tp")) model.weight.set_tensor_shard({"tp", 0, mesh.size("tp"), mesh.coordinate("tp")});
        model.block.experts.weight.set_tensor_shard({"expert", 0, c.parts, of_experts.coordinate("expert")});
        fully_shard(model.block.experts, of_experts, {.strategy = strategy, .shard_dim = "expert_shard"});
        const FullyShardOptions o{.strategy = strategy, .gradient_ranks = c.of_root};
        fully_shard(model.block, mesh, o);
        fully_shard(model, mesh, o);
        run_pass(model, Tensor::empty(*r.device, {1}, DType::f32, "test"));
        float sum = 0;
        for (int rank = me % c.parts; rank < 4; rank += c.parts) sum += static_cast<float>(rank + 1);
        for (float g : ops::to_floats(r.device->compute(), model.block.experts.weight.grad_shard()))
          EXPECT_EQ(g, sum / c.batches);
      });
}

TEST(TensorShardReduce, FrozenExpertsNeedNoNumberOfRanks) {
  launch(2, [](RankContext& r) {
    const DeviceMesh of_experts(r.world, {{"expert_shard", 1}, {"expert", 2}});
    Nested model(1, 2);
    model.block.experts.weight.set_tensor_shard({"expert", 0, 2, r.world->rank()});
    model.block.experts.weight.freeze();
    fully_shard(model.block.experts, of_experts, {.shard_dim = "expert_shard"});
    fully_shard(model, mesh_of(r));
    model.set_training(false);
    model(nn::Var(Tensor::empty(*r.device, {1}, DType::f32, "test")));
  });
}

// 7 rows over 4 ranks are 2, 2, 2 and 1, 5 rows 2, 2, 1 and none.
TEST(UnevenTensorShard, HoldsWhatIsNotPadding) {
  const std::pair<int64_t, std::vector<int64_t>> cuts[] = {
      {7, {2, 2, 2, 1}}, {5, {2, 2, 1, 0}}, {8, {2, 2, 2, 2}}};
  for (const auto& [size, last] : cuts)
    for (int index = 0; index < 4; ++index) {
      const TensorShard shard{"tp", 0, 4, index, size};
      EXPECT_EQ(global_shape({2, 3}, shard), (Shape{size, 3}));
      const int64_t held = held_elements({2, 3}, shard);
      EXPECT_EQ(held, 3 * last[static_cast<size_t>(index)]) << size << " " << index;
      const std::vector<GlobalRun> runs = global_runs({2, 3}, {}, shard, {ParamIndex(0), ParamIndex(held)});
      ASSERT_EQ(runs.size(), held > 0 ? 1u : 0u);
      for (const GlobalRun& run : runs) EXPECT_EQ(run.global.value, 6 * index);
    }
}

TEST(UnevenTensorShard, PiecesThatAreNotTheQuotientRoundedUpAreRefused) {
  Parameter p("p", {3, 2}, constant(1)), blocks("blocks", {2, 2}, constant(1));
  EXPECT_THROW(p.set_tensor_shard({"tp", 0, 4, 0, 7}), InvalidArgument);  // 2 rows each
  EXPECT_THROW(p.set_tensor_shard({"tp", 0, 2, 0, -5}), InvalidArgument);
  EXPECT_THROW(p.set_tensor_shard({"tp", 1, 2, 0, 3}), InvalidArgument);  // columns
  blocks.set_row_blocks({1, 1});
  EXPECT_THROW(blocks.set_tensor_shard({"tp", 0, 2, 0, 3}), InvalidArgument);
  p.set_tensor_shard({"tp", 0, 2, 1, 5});
  EXPECT_THROW(p.set_row_blocks({1, 2}), InvalidArgument);
}

// 5 rows over 4 tensor-parallel ranks, 2 of them sharding each piece: what is there of the parameter is what one rank
// has, and the content of the padding's gradient is not part of a norm.
TEST(UnevenTensorShard, StartsAndIsClippedAsWhole) {
  std::map<int64_t, float> started;
  float norm = 0;
  std::mutex mutex;
  const auto run = [&](int tp, int shards) {
    launch(tp * shards, [&](RankContext& r) {
      const DeviceMesh mesh(r.world, {{"shard", shards}, {"tp", tp}});
      Constant model({(5 + tp - 1) / tp, 3}, 2);
      model.weight.set_tensor_shard({"tp", 0, tp, mesh.coordinate("tp"), tp == 1 ? 0 : 5});
      fully_shard(model, mesh, {}, {.seed = 3});
      Stream& s = r.device->compute();
      const std::vector<float> mine = ops::to_floats(s, model.weight.shard());
      run_pass(model, Tensor::empty(*r.device, {1}, DType::f32, "test"));
      const GradientStats stats = read_stats(model, clip_grad_norm(model, 0));
      EXPECT_EQ(model.weight.grad_shard().numel(), model.weight.shard().numel());
      const std::lock_guard lock(mutex);
      if (norm == 0) norm = stats.norm;
      EXPECT_EQ(stats.norm, norm) << tp << " " << shards;
      size_t at = 0;
      for (const GlobalRun& part : model.weight.global_runs(model.weight.shard_range()))
        for (int64_t i = 0; i < part.count; ++i) {
          const float value = mine[at++];
          EXPECT_EQ(started.emplace(part.global.value + i, value).first->second, value);
        }
      EXPECT_EQ(at, mine.size());
    });
    EXPECT_EQ(started.size(), 15u);
  };
  run(1, 1);
  run(4, 1);
  run(2, 2);
  run(4, 2);
  EXPECT_FLOAT_EQ(norm, 2 * std::sqrt(15.0f));
}

}  // namespace
}  // namespace sherd::test
