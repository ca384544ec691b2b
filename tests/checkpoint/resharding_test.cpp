// A checkpoint of any arrangement of ranks loads on any other, bit for bit.
#include <fmt/format.h>

#include <cstdlib>

#include <sherd/checkpoint/files/checkpoint_folder.h>
#include <sherd/checkpoint/resume.h>
#include <sherd/checkpoint/saver.h>

#include "support/filled_state.h"
#include "support/message_of.h"
#include "support/pieces.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

struct Arrangement {
  int ranks = 1, replicas = 1;
  Strategy strategy = Strategy::optim_grads_params;
  LayoutPolicy layout = LayoutPolicy::ragged;
  Outer outer = Outer::no_shard;
  DType compute = DType::f32;

  std::string show() const {
    return std::to_string(ranks) + " ranks, " + std::to_string(replicas) + " replicas, " + name_of(strategy) +
           ", outer " + name_of(outer) + ", layout " + std::to_string(static_cast<int>(layout)) + ", " +
           name_of(compute);
  }
};

std::vector<Arrangement> all_arrangements() {
  std::vector<Arrangement> all;
  for (int ranks : {1, 2, 3, 4, 6, 8})
    for (Strategy s : kEveryStrategy)
      for (LayoutPolicy l : {LayoutPolicy::ragged, LayoutPolicy::even_rows, LayoutPolicy::whole_param})
        all.push_back({ranks, 1, s, l, Outer::no_shard, DType::f32});
  for (Outer outer : {Outer::no_shard, Outer::optim}) {
    all.push_back({4, 2, Strategy::optim_grads_params, LayoutPolicy::ragged, outer, DType::bf16});
    all.push_back({6, 3, Strategy::optim, LayoutPolicy::even_rows, outer, DType::bf16});
    all.push_back({8, 8, Strategy::no_shard, LayoutPolicy::whole_param, outer, DType::f32});
  }
  return all;
}

/// A wrapped Awkward model with Muon for its matrices and AdamW for the rest.
struct Subject {
  Subject(RankContext& rank, const Arrangement& a) {
    const Routing routing = route(model);
    FullyShardOptions options{.strategy = a.strategy, .outer = a.outer, .layout = a.layout};
    options.bucket_elements = a.ranks % 2 == 0 ? 1 : 0;  // whole_param: many buckets that span units, or one
    options.compute_dtype = a.compute;
    std::vector<MeshDim> dims{{"shard", a.ranks / a.replicas}};
    if (a.replicas > 1) dims.insert(dims.begin(), MeshDim{"replicate", a.replicas});
    model.wrap(DeviceMesh(rank.world, dims), options);
    optimizer.emplace(model, routing, OptimizerOptions{});
  }
  Awkward model;
  std::optional<Optimizer> optimizer;
};

// By day a third of the pairs: each arrangement loads those of every number of ranks and strategy, under one layout of three
// in turn.
TEST(Resharding, EveryArrangementLoadsEveryOther) {
  const TemporaryFolder folder;
  const std::vector<Arrangement> all = all_arrangements();
  const auto place = [&](size_t i) { return folder / ("saved" + std::to_string(i)); };
  // By its own name: states hold NaNs, which are passed over in a folder of checkpoints.
  const auto checkpoint = [&](size_t i) { return place(i) + fmt::format("/step_{:08}", i); };
  for (size_t i = 0; i < all.size(); ++i) {
    test::launch(all[i].ranks, [&](RankContext& rank) {
      Subject s(rank, all[i]);
      fill_state(s.model, &*s.optimizer, i);
      CheckpointSaver saver(rank.world, checkpoint_tensors(s.model, &*s.optimizer), {.folder = place(i)});
      saver.save({.step = static_cast<int64_t>(i), .sequences = 3, .seed = 7, .info = {{"a", "b"}}});
    });
  }
  const bool every_pair = std::getenv("SHERD_NIGHTLY") != nullptr;
  int64_t loads = 0;
  for (size_t to = 0; to < all.size(); ++to) {
    const Arrangement& a = all[to];
    test::launch(a.ranks, [&](RankContext& rank) {
      Subject s(rank, a);
      for (size_t i = 0; i < all.size(); ++i) {
        // i % 3 is the layout, i / 12 the number of ranks.
        if (!every_pair && (i + i / 12 + to + to / 3) % 3 != 0) continue;
        const Resumed r = resume(checkpoint(i), s.model, &*s.optimizer);
        EXPECT_THAT(wrong_state(s.model, &*s.optimizer, i), IsEmpty())
            << all[i].show() << " loaded on " << a.show();
        EXPECT_EQ(r.report.training, (TrainingState{static_cast<int64_t>(i), 3, 7, {{"a", "b"}}}));
        EXPECT_EQ(s.optimizer->steps(), static_cast<int64_t>(i));
        if (rank.world->rank() == 0) ++loads;
      }
    });
  }
  std::printf("%lld pairs of arrangements\n", static_cast<long long>(loads));
}

// Tensor- and expert-parallel pieces are pieces of one whole tensor.
TEST(Resharding, TensorAndExpertParallelPieces) {
  const TemporaryFolder folder;
  const std::vector<Spread> all{{1, 1, 1, 1}, {1, 2, 1, 2}, {1, 2, 2, 1}, {2, 1, 2, 4},
                                {1, 1, 4, 2}, {2, 2, 1, 1}, {1, 3, 1, 1}, {2, 2, 2, 4}};
  const auto place = [&](size_t i) { return folder / ("saved" + std::to_string(i)); };
  // By its own name: states hold NaNs, which are passed over in a folder of checkpoints.
  const auto checkpoint = [&](size_t i) { return place(i) + "/step_00000001"; };
  for (size_t i = 0; i < all.size(); ++i) {
    test::launch(all[i].ranks(), [&](RankContext& rank) {
      Pieces model(rank, all[i]);
      const Routing routing = route(model);
      model.wrap();
      Optimizer optimizer(model, routing, {});
      fill_state(model, &optimizer, i);
      CheckpointSaver saver(rank.world, checkpoint_tensors(model, &optimizer), {.folder = place(i)});
      saver.save({.step = 1});
    });
  }
  for (const Spread& spread : all) {
    test::launch(spread.ranks(), [&](RankContext& rank) {
      Pieces model(rank, spread);
      const Routing routing = route(model);
      model.wrap();
      Optimizer optimizer(model, routing, {});
      for (size_t i = 0; i < all.size(); ++i) {
        resume(checkpoint(i), model, &optimizer);
        EXPECT_THAT(wrong_state(model, &optimizer, i), IsEmpty()) << i;
      }
    });
  }
}

// Replicas share the writing evenly.
TEST(Resharding, ReplicasWriteEquallyMuch) {
  test::launch(4, [&](RankContext& rank) {
    ToyModel model(64, 256, 3);
    const Routing routing = route(model, {.optimizer = Algorithm::muon});
    const DeviceMesh mesh(rank.world, {{"replicate", 2}, {"shard", 2}});
    fully_shard(model, mesh, {.strategy = Strategy::no_shard});
    Optimizer optimizer(model, routing, {});
    int64_t mine = 0, all = 0;
    for (const LocalTensor& t : checkpoint_tensors(model, &optimizer)) {
      all += 4 * numel_of(t.shape);
      for (const Box& box : t.boxes) mine += 4 * numel_of(box.size);
    }
    EXPECT_NEAR(static_cast<double>(mine), static_cast<double>(all) / 4, static_cast<double>(all) / 4 * 0.05);
  });
}

}  // namespace
}  // namespace sherd::test
