// Buckets of matrices that span units, at work: the bits of ragged, when they are reduced and gathered, what
// that costs, and that nothing that may happen to a step leaves a trace in them.

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include <sherd/fsdp/accumulate.h>

#include "fsdp/same_result.h"
#include "support/message_of.h"
#include "support/rig.h"

namespace sherd::test {
namespace {

constexpr Strategy kBucketed[] = {Strategy::optim, Strategy::optim_grads};

FullyShardOptions whole(Strategy strategy, int64_t bucket_elements) {
  return {.strategy = strategy, .layout = LayoutPolicy::whole_param, .bucket_elements = bucket_elements};
}

// Muon on three blocks of two matrices of 377 elements.
ToyRun muon_run(int ranks) { return {.ranks = ranks, .rows = 12 * ranks, .optimizer = Algorithm::muon}; }

TEST(Bucket, OfAnySizeGivesTheBitsOfRagged) {
  for (const int ranks : {1, 2, 3, 4, 5, 6}) {
    ToyRun run = muon_run(ranks);
    run.options = {.strategy = Strategy::optim_grads};
    const ToyResult want = run_toy(run);
    for (const Strategy s : kBucketed) {
      for (const int64_t size : {0, 1, 800}) {
        run.options = whole(s, size);
        expect_same_bits(run_toy(run), want,
                         fmt::format("{} ranks, {}, buckets of {}", ranks, name_of(s), size));
      }
    }
  }
}

TEST(Bucket, OfFewerMatricesThanRanksDoes) {
  ToyRun run = muon_run(5);
  run.blocks = 1;
  run.options = {.strategy = Strategy::optim_grads};
  const ToyResult want = run_toy(run);
  for (const Packing packing : {Packing::lpt, Packing::size_match, Packing::ping_pong}) {
    run.options = whole(Strategy::optim_grads, 1);
    run.options.packing = packing;
    expect_same_bits(run_toy(run), want, name_of(packing));
  }
}

TEST(Bucket, OverReplicasGivesTheBitsOfRagged) {
  ToyRun run = muon_run(4);
  run.options = {.strategy = Strategy::optim_grads};
  const ToyResult want = run_toy(run);
  for (const int replicas : {2, 4}) {
    for (const Outer outer : {Outer::no_shard, Outer::optim}) {
      for (const Strategy s : {Strategy::no_shard, Strategy::optim, Strategy::optim_grads}) {
        for (const int64_t size : {0, 1}) {
          run.replicas = replicas;
          run.options = whole(s, size);
          run.options.outer = outer;
          expect_same_bits(run_toy(run), want,
                           fmt::format("{} replicas, outer {}, {}", replicas, name_of(outer), name_of(s)));
        }
      }
    }
  }
}

TEST(Bucket, MicrobatchesGiveTheBitsOfTheFamily) {
  ToyRun run = muon_run(4);
  run.accumulate = 3;
  for (const Strategy s : kBucketed) {
    run.options = {.strategy = s};
    const ToyResult want = run_toy(run);
    for (const int64_t size : {0, 1, 800}) {
      for (const bool overlap : {true, false}) {
        run.options = whole(s, size);
        run.root.overlap_reduce = overlap;
        run.root.prefetch = overlap ? 1 : 0;
        expect_same_bits(run_toy(run), want, fmt::format("{}, buckets of {}", name_of(s), size));
      }
    }
  }
}

TEST(Bucket, In16BitsGivesTheBitsOfRagged) {
  ToyRun run = muon_run(4);
  for (const Strategy s : kBucketed) {
    FullyShardOptions o{.strategy = s};
    o.compute_dtype = o.reduce_dtype = DType::bf16;
    run.options = o;
    const ToyResult want = run_toy(run);
    o.layout = LayoutPolicy::whole_param;
    for (const int64_t size : {0, 1}) {
      o.bucket_elements = size;
      run.options = o;
      expect_same_bits(run_toy(run), want, fmt::format("{}, buckets of {}", name_of(s), size));
    }
  }
}

/// A rig whose blocks' matrices are Muon's, with tokens of its rank.
struct MuonModel : Rig {
  MuonModel(RankContext& r, const FullyShardOptions& o,
            const std::function<void(ToyModel&)>& before = nullptr, const RootOptions& root = {})
      : Rig(r, o, 1, before, 16, 32, root, Algorithm::muon) {
    ops::fill(r.device->compute(), tokens, 3 + r.world->rank());
  }
  void pass() {
    forward();
    backward();
  }
  std::vector<std::vector<float>> weights() {
    Stream& s = rank.device->compute();
    std::vector<std::vector<float>> all;
    for (auto& [name, p] : model.named_parameters())
      all.push_back(ops::to_floats(s, p.dtensor().full_tensor(s)));
    return all;
  }
  ShardRuntime& runtime() { return runtime_of(model); }
};

TEST(Bucket, IsReducedAndGatheredWhileOthersCompute) {
  launch(2, [](RankContext& r) {
    MuonModel rig(r, whole(Strategy::optim_grads, 1));
    rig.step();
    rig.runtime().enable_trace(true);
    rig.forward();
    EXPECT_THAT(rig.runtime().trace(),
                ElementsAre("unshard root", "unshard blocks.0", "gather bucket 2 (blocks.0)",
                            "gather bucket 1 (blocks.1)", "gather bucket 0 (blocks.2)", "forward root",
                            "unshard blocks.1", "forward blocks.0", "unshard blocks.2", "forward blocks.1",
                            "forward blocks.2"));
    rig.runtime().clear_trace();
    rig.backward();
    EXPECT_THAT(
        rig.runtime().trace(),
        ElementsAre("backward root", "backward blocks.2", "post blocks.2", "reduce bucket 0 (blocks.2)",
                    "backward blocks.1", "post blocks.1", "reduce bucket 1 (blocks.1)", "backward blocks.0",
                    "post blocks.0", "reduce bucket 2 (blocks.0)", "post root"));
    rig.sync();
  });
}

TEST(Bucket, ThatSpansUnitsWaitsForTheLastOfThem) {
  launch(4, [](RankContext& r) {
    MuonModel rig(r, whole(Strategy::optim_grads, 1));
    rig.runtime().enable_trace(true);
    rig.pass();
    const std::vector<std::string>& trace = rig.runtime().trace();
    const auto at = [&](const std::string& what) {
      return std::find(trace.begin(), trace.end(), what) - trace.begin();
    };
    // Four matrices make a bucket of four ranks.
    EXPECT_GT(at("reduce bucket 0 (blocks.2 to blocks.1)"), at("post blocks.1"));
    EXPECT_LT(at("reduce bucket 0 (blocks.2 to blocks.1)"), at("backward blocks.0"));
    EXPECT_GT(at("reduce bucket 1 (blocks.0)"), at("post blocks.0"));
    EXPECT_LT(at("reduce bucket 1 (blocks.0)"), at("post root"));
    zero_grad(rig.model);
    rig.sync();
  });
}

TEST(Bucket, CostsACollectiveEachBesideThoseOfTheUnits) {
  for (const Strategy s : kBucketed) {
    launch(4, [s](RankContext& r) {
      for (const auto& [size, buckets] : {std::pair<int64_t, int>{0, 1}, {1, 2}}) {
        MuonModel rig(r, whole(s, size));
        EXPECT_EQ(rig.runtime().plan().buckets.size(), static_cast<size_t>(buckets));
        rig.step();
        auto step = rig.counted([&] { rig.pass(); });
        EXPECT_EQ(step["all_gather"].calls, kBlocks + 1 + buckets);
        EXPECT_EQ(step["reduce_scatter"].calls, kBlocks + 1 + buckets);
        const StepTraffic traffic = rig.runtime().plan().traffic();
        EXPECT_EQ(step["all_gather"].bytes, traffic.all_gather);
        EXPECT_EQ(step["reduce_scatter"].bytes, traffic.reduce_scatter);
        EXPECT_EQ(step["all_reduce"].calls, 0);
        zero_grad(rig.model);
        // Muon's matrices are whole where they are updated: nothing travels in its step.
        rig.pass();
        auto update = rig.counted([&] { rig.optimizer->step(0.01); });
        EXPECT_EQ(update["all_to_all_v"].bytes, 0);
      }
    });
  }
}

TEST(Bucket, OfUnitsThatAPassLeavesOutIsReducedAtTheRootsEnd) {
  for (const Strategy s : kBucketed) {
    for (const int64_t size : {0, 1}) {
      launch(3, [&](RankContext& r) {
        std::optional<std::vector<std::vector<float>>> want;
        for (const LayoutPolicy layout : {LayoutPolicy::ragged, LayoutPolicy::whole_param}) {
          FullyShardOptions o = whole(s, size);
          o.layout = layout;
          MuonModel rig(r, o, nullptr, {.allow_unused = true});
          const auto unused = rig.model.blocks_[1];
          for (int step = 0; step < 4; ++step) {
            if (step % 2 == 1) rig.model.blocks_.erase(rig.model.blocks_.begin() + 1);
            rig.step();
            if (step % 2 == 1) rig.model.blocks_.insert(rig.model.blocks_.begin() + 1, unused);
          }
          if (want) {
            EXPECT_EQ(rig.weights(), *want) << name_of(s) << " " << size;
          }
          want = rig.weights();
        }
      });
    }
  }
}

TEST(Bucket, NamesTheParametersThatNoBackwardTouched) {
  launch(2, [](RankContext& r) {
    MuonModel rig(r, whole(Strategy::optim_grads, 0));
    rig.step();
    const auto kept = rig.model.blocks_[1];
    rig.model.blocks_.erase(rig.model.blocks_.begin() + 1);
    rig.forward();
    EXPECT_THAT(message_of<InvalidArgument>([&] { rig.backward(); }),
                ::testing::AllOf(HasSubstr("blocks.1.up.weight"), HasSubstr("blocks.1.down.weight")));
    rig.model.blocks_.insert(rig.model.blocks_.begin() + 1, kept);
    reset_step(rig.model);
    rig.step();
    rig.sync();
  });
}

TEST(Bucket, HeldGradientsAreThoseOfTheFamilyThatSumsFirst) {
  for (const int64_t size : {0, 1}) {
    launch(3, [&](RankContext& r) {
      std::optional<std::vector<std::vector<float>>> want;
      for (const Strategy s : kBucketed) {
        MuonModel rig(r, whole(s, size));
        for (int step = 0; step < 3; ++step) {
          {
            Accumulate accumulate(rig.model, GradientSync::last);
            const auto moved = rig.counted([&] {
              rig.pass();
              rig.pass();
            });
            const auto it = moved.find("reduce_scatter");
            if (it != moved.end()) {
              EXPECT_EQ(it->second.calls, 0);
            }
          }
          rig.step();
        }
        if (want) {
          EXPECT_EQ(rig.weights(), *want) << "buckets of " << size;
        }
        want = rig.weights();
      }
    });
  }
}

TEST(Bucket, DroppedGradientsLeaveNoTrace) {
  for (const Strategy s : kBucketed) {
    for (const int64_t size : {0, 1}) {
      launch(3, [&](RankContext& r) {
        MuonModel rig(r, whole(s, size)), plain(r, whole(s, size));
        for (int step = 0; step < 3; ++step) {
          rig.pass();
          zero_grad(rig.model);
          rig.runtime().set_last_microbatch(false);
          rig.pass();
          reset_step(rig.model);
          rig.runtime().set_last_microbatch(true);
          {
            Accumulate accumulate(rig.model, GradientSync::last);
            rig.pass();
            zero_grad(rig.model);
          }
          rig.step();
          plain.step();
        }
        EXPECT_EQ(rig.weights(), plain.weights()) << name_of(s) << " " << size;
      });
    }
  }
}

TEST(Bucket, OfOneUnitsForwardWaitsForItsOwnAlone) {
  launch(2, [](RankContext& r) {
    MuonModel rig(r, whole(Strategy::optim, 1));
    rig.step();
    rig.runtime().enable_trace(true);
    auto unit = rig.model.blocks_[0]->unit();
    unit->unshard();
    unit->wait();
    EXPECT_THAT(rig.runtime().trace(), ElementsAre("unshard blocks.0", "gather bucket 2 (blocks.0)"));
    EXPECT_TRUE(rig.model.blocks_[0]->up_.data().defined());
    EXPECT_THROW(rig.model.blocks_[1]->up_.data(), InvalidArgument);
    unit->reshard();
    rig.sync();
  });
}

TEST(Bucket, ErrorsNameTheUnitOfTheParameter) {
  launch(2, [](RankContext& r) {
    MuonModel rig(r, whole(Strategy::optim_grads, 0));
    EXPECT_THAT(message_of<InvalidArgument>([&] { rig.model.blocks_[1]->up_.grad(); }),
                HasSubstr("grad() of 'blocks.1.up.weight' outside the backward of unit 'blocks.1'"));
    rig.sync();
    ToyModel wrong(16, 32, 1);
    (void)route(wrong);
    EXPECT_THAT(message_of<InvalidArgument>(
                    [&] { fully_shard(wrong, mesh_of(r), whole(Strategy::optim_grads, -1)); }),
                HasSubstr("bucket_elements -1"));
  });
}

// A matrix in two places, which makes it the root's.
struct TwoPlaces : nn::Module<TwoPlaces> {
  struct Square : nn::Module<Square> {
    explicit Square(const Square* other = nullptr) {
      w = other == nullptr ? param("weight", {12, 12}, normal(0.2f)) : tie("weight", other->w);
      own = param("own", {12, 12}, normal(0.2f));
    }
    nn::Var forward(const nn::Var& x) { return nn::linear(nn::linear(x, w), own); }
    Parameter w, own;
  };
  TwoPlaces() : b(&a) {
    child("a", a);
    child("b", b);
  }
  nn::Var forward(const nn::Var& x) { return b(a(x)); }
  Square a, b;
};

TEST(Bucket, OfATiedMatrixIsReducedOnceBothPlacesAreThrough) {
  for (const Strategy s : kBucketed) {
    launch(3, [&](RankContext& r) {
      std::optional<std::vector<std::vector<float>>> want;
      for (const LayoutPolicy layout : {LayoutPolicy::ragged, LayoutPolicy::whole_param}) {
        FullyShardOptions o = whole(s, 0);
        o.layout = layout;
        TwoPlaces model;
        const Routing routes = route(model, {.rules = {{.pattern = "weight", .algorithm = Algorithm::muon}}});
        const DeviceMesh mesh = mesh_of(r);
        fully_shard(model.a, mesh, o);
        fully_shard(model.b, mesh, o);
        fully_shard(model, mesh, o);
        if (layout == LayoutPolicy::whole_param) {
          ASSERT_EQ(runtime_of(model).plan().buckets.size(), 2u);
          EXPECT_EQ(runtime_of(model).plan().buckets[1].group.unit, "bucket 1 (root)");
        }
        Optimizer optimizer(model, routes, {});
        Stream& stream = r.device->compute();
        const Tensor x = Tensor::empty(*r.device, {4, 12}, DType::f32, "test");
        for (int step = 0; step < 3; ++step) {
          ops::random_normal(stream, x, (3 * step + r.world->rank()) * x.numel(), 1, "in", 0, 1);
          for (const bool last : {false, true}) {
            runtime_of(model).set_last_microbatch(last);
            run_pass(model, x, x);
          }
          clip_grad_norm(model, 0.5);
          optimizer.step(0.02);
        }
        std::vector<std::vector<float>> got;
        for (auto& [name, p] : model.named_parameters())
          got.push_back(ops::to_floats(stream, p.dtensor().full_tensor(stream)));
        if (want) {
          EXPECT_EQ(got, *want) << name_of(s);
        }
        want = got;
      }
    });
  }
}

// A unit within another, which is called twice and uses it the first time alone.
struct CalledTwice : nn::Module<CalledTwice> {
  struct Outer : nn::Module<Outer> {
    Outer() {
      w = param("weight", {12, 12}, normal(0.2f));
      child("inner", inner);
    }
    Parameter w;
    TwoPlaces::Square inner;
    // The backward of the inner unit begins when that of the second call has ended, and the first's has not.
    nn::Var forward(const nn::Var& x, bool first) { return nn::linear(first ? inner(x) : x, w); }
  };
  CalledTwice() { child("outer", outer); }
  nn::Var forward(const nn::Var& x) { return outer(outer(x, true), false); }
  Outer outer;
};

TEST(Bucket, WaitsForAUnitWhoseBackwardHasBegunAgain) {
  for (const Strategy s : kBucketed) {
    launch(2, [&](RankContext& r) {
      std::optional<std::vector<float>> want;
      for (const LayoutPolicy layout : {LayoutPolicy::ragged, LayoutPolicy::whole_param}) {
        FullyShardOptions o = whole(s, 0);
        o.layout = layout;
        CalledTwice model;
        const Routing routes =
            route(model, {.rules = {{.pattern = "weight|own", .algorithm = Algorithm::muon}}});
        const DeviceMesh mesh = mesh_of(r);
        fully_shard(model.outer.inner, mesh, o);
        fully_shard(model.outer, mesh, o);
        fully_shard(model, mesh, o);
        Stream& stream = r.device->compute();
        const Tensor x = Tensor::empty(*r.device, {4, 12}, DType::f32, "test");
        ops::random_normal(stream, x, r.world->rank() * x.numel(), 1, "in", 0, 1);
        run_pass(model, x, x);
        // Squares of each parameter's elements, wherever they are stored.
        std::vector<float> got;
        for (auto& [name, p] : model.named_parameters()) {
          float sum = 0;
          for (const float g : ops::to_floats(stream, p.grad_shard())) sum += g * g;
          got.push_back(sum);
        }
        const Tensor sums = Tensor::empty(*r.device, {static_cast<int64_t>(got.size())}, DType::f32, "test");
        ops::copy_from_host(stream, sums, got.data(), sums.nbytes());
        r.world->all_reduce(stream, sums);
        got = ops::to_floats(stream, sums);
        for (size_t i = 0; want && i < got.size(); ++i)
          EXPECT_NEAR(got[i], (*want)[i], 1e-5 * (*want)[i]) << name_of(s) << " " << i;
        want = got;
        zero_grad(model);
      }
    });
  }
}

}  // namespace
}  // namespace sherd::test
