// Robustness: second backwards, nested units, failing ranks, retried wraps, uneven usage, files.

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>

#include <unistd.h>

#include <sherd/checkpoint/safetensors/safetensors.h>
#include <sherd/checkpoint/weights.h>

#include "support/message_of.h"
#include "support/rig.h"

namespace sherd::test {
namespace {

TEST(Robustness, ASecondBackwardWithoutAStepIsRefused) {
  for (Strategy s : kEveryStrategy) {
    launch(2, [s](RankContext& r) {
      Rig rig(r, {.strategy = s});
      rig.forward();
      rig.backward();
      rig.forward();
      EXPECT_THROW(rig.model.unit()->pre_backward(), InvalidArgument);
      rig.taped.tape.clear();
      rig.optimizer->step(0.01);  // the first gradients are still whole and well
      rig.step();
      rig.sync();
    });
  }
}

TEST(Robustness, WholeParametersAreNotReadableBetweenStepAndUnshard) {
  for (Strategy s : kEveryStrategy) {
    launch(2, [s](RankContext& r) {
      Rig rig(r, {.strategy = s});
      rig.step();
      EXPECT_THROW(rig.model.head_.data(), InvalidArgument);
      rig.model.unit()->unshard();
      rig.model.unit()->wait();
      EXPECT_NO_THROW(rig.model.head_.data());
      rig.sync();
    });
  }
}

TEST(Robustness, ARankThatFailsInsideAStepEndsAllWithItsOwnError) {
  const auto start = std::chrono::steady_clock::now();
  for (int failing = 0; failing < 4; ++failing) {
    for (const char* where : {"forward", "backward", "step"}) {
      try {
        launch(4, [&](RankContext& r) {
          Rig rig(r, {});
          rig.step();
          const bool fails = r.world->rank() == failing;
          auto fail = [&](const char* here) {
            if (fails && std::string(here) == where) throw IoError(std::string("disk full in ") + here);
          };
          for (int i = 0; i < 3; ++i) {
            rig.forward();
            fail("forward");
            rig.backward();
            fail("backward");
            clip_grad_norm(rig.model, 1.0);
            rig.optimizer->step(0.01);
            fail("step");
          }
          rig.sync();
        });
        FAIL() << "no error from rank " << failing;
      } catch (const IoError& e) {
        EXPECT_STREQ(e.what(), (std::string("disk full in ") + where).c_str());
      }
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(Robustness, AFailedWrapLeavesTheModelAsItWas) {
  launch(2, {.device = {.memory_limit = 1'800'000}}, [](RankContext& r) {
    ToyModel model(96, 384, 2);
    (void)route(model, {.optimizer = Algorithm::adamw});
    const DeviceMesh mesh = mesh_of(r);
    FullyShardOptions o{.strategy = Strategy::no_shard};
    for (int attempt = 0; attempt < 2; ++attempt) {
      for (auto& b : model.blocks_) fully_shard(*b, mesh, o);
      if (attempt == 0) {
        o.padding_budget = -1;
        EXPECT_THROW(fully_shard(model, mesh, o), InvalidArgument);
        o.padding_budget = 0.03;
        EXPECT_THROW(model.head_.data(), InvalidArgument);
      } else {
        EXPECT_NO_THROW(fully_shard(model, mesh, o));
      }
    }
    EXPECT_THROW(fully_shard(*model.blocks_[0], mesh, o), InvalidArgument);
    r.device->compute().synchronize();
  });
}

TEST(Robustness, DifferentOptionsOnDifferentRanksAreRefused) {
  auto wrap = [](const std::function<void(FullyShardOptions&, RootOptions&)>& change) {
    launch(2, [&](RankContext& r) {
      FullyShardOptions o{.strategy = Strategy::no_shard};
      RootOptions root;
      if (r.world->rank() == 1) change(o, root);
      ToyModel model(8, 8, 1);
      fully_shard(model, mesh_of(r), o, root);
    });
  };
  EXPECT_THROW(wrap([](auto&, auto& root) { root.seed = 1; }), ShapeMismatch);
  EXPECT_THROW(wrap([](auto& o, auto&) { o.strategy = Strategy::optim; }), ShapeMismatch);
  EXPECT_THROW(wrap([](auto& o, auto&) { o.compute_dtype = DType::bf16; }), ShapeMismatch);
}

TEST(Robustness, UnusedOnSomeRanksOnlyIsAnErrorNotAMixture) {
  EXPECT_THROW(launch(2,
                      [](RankContext& r) {
                        Rig rig(r, {}, {.allow_unused = true});
                        if (r.world->rank() == 1) {
                          rig.model.blocks_.erase(rig.model.blocks_.begin() + 1);
                        }
                        rig.step();
                        rig.sync();
                      }),
               Error);
}

TEST(Robustness, OptimizerStateIsEvenOverRanks) {
  launch(8, [](RankContext& r) {
    ToyModel model(64, 256, 6);
    const Routing routes = route(model);
    const DeviceMesh mesh = mesh_of(r);
    for (auto& b : model.blocks_) fully_shard(*b, mesh);
    fully_shard(model, mesh);
    Optimizer optimizer(model, routes, {});
    Stream& s = r.device->compute();
    int64_t bytes = 0;
    for (auto& t : optimizer.state()) bytes += t.local.nbytes();
    const Tensor all = Tensor::empty(*r.device, {8}, DType::i64, "test"),
                 mine = all.flat(r.world->rank(), r.world->rank() + 1);
    ops::copy_from_host(s, mine, &bytes, sizeof bytes);
    r.world->all_gather(s, all, mine);
    std::vector<int64_t> got(8);
    ops::copy_to_host(s, got.data(), all);
    const double mean = static_cast<double>(std::accumulate(got.begin(), got.end(), int64_t{0})) / 8;
    EXPECT_LT(static_cast<double>(*std::max_element(got.begin(), got.end())), 1.03 * mean);
  });
}

// A block inside a wrapped shell: the shell is in use while the block is.
struct Shell : nn::Module<Shell> {
  Shell(int64_t width, int64_t hidden) : inner(width, hidden) {
    gain = param("gain.weight", {width}, constant(1));
    child("inner", inner);
  }
  nn::Var forward(const nn::Var& x) { return inner(nn::rms_norm(x, gain)); }
  ToyBlock inner;
  Parameter gain;
};

struct Nest : nn::Module<Nest> {
  Nest() {
    for (int i = 0; i < 3; ++i) {
      shells.push_back(std::make_unique<Shell>(12, 20));
      child("shells." + std::to_string(i), *shells.back());
    }
    scale = param("scale.weight", {12}, constant(1));
  }
  nn::Var forward(nn::Var x) {
    for (auto& s : shells) x = (*s)(x);
    return nn::rms_norm(x, scale);
  }
  std::vector<std::unique_ptr<Shell>> shells;
  Parameter scale;
};

TEST(Robustness, UnitsInsideUnitsTrainTheSame) {
  std::vector<std::vector<float>> want;
  for (Strategy strategy : kEveryStrategy) {
    for (const bool nested : {false, true}) {
      std::vector<std::vector<float>> got;
      launch(2, [&](RankContext& r) {
        Nest model;
        const Routing routes = route(model, {.optimizer = Algorithm::adamw});
        const DeviceMesh mesh = mesh_of(r);
        const FullyShardOptions o{.strategy = strategy};
        for (auto& s : model.shells) {
          if (nested) fully_shard(s->inner, mesh, o);
          fully_shard(*s, mesh, o);
        }
        fully_shard(model, mesh, o);
        Optimizer optimizer(model, routes, {});
        Stream& s = r.device->compute();
        const Tensor in = Tensor::empty(*r.device, {4, 12}, DType::f32, "test");
        const Tensor dy = Tensor::empty(*r.device, {4, 12}, DType::f32, "test");
        ops::random_normal(s, in, 48 * r.world->rank(), 1, "in", 0, 1);
        ops::random_normal(s, dy, 48 * r.world->rank(), 1, "dy", 0, 1);
        for (int step = 0; step < 3; ++step) {
          run_pass(model, in, dy);
          optimizer.step(0.01);
        }
        for (auto& [name, p] : model.named_parameters()) {
          const auto w = ops::to_floats(s, p.dtensor().full_tensor(s));
          if (r.world->rank() == 0) got.push_back(w);
        }
      });
      if (want.empty()) want = got;
      EXPECT_EQ(got, want) << name_of(strategy) << (nested ? " nested" : "");
    }
  }
}

TEST(Robustness, UnitsInsideUnitsShareSlotsByHeightAndAreGatheredAhead) {
  launch(2, [](RankContext& r) {
    Nest model;
    const Routing routes = route(model, {.optimizer = Algorithm::adamw});
    const DeviceMesh mesh = mesh_of(r);
    for (auto& s : model.shells) {
      fully_shard(s->inner, mesh);
      fully_shard(*s, mesh);
    }
    fully_shard(model, mesh);
    Optimizer optimizer(model, routes, {});
    ShardRuntime& runtime = runtime_of(model);
    runtime.enable_trace(true);
    const Tensor in = Tensor::empty(*r.device, {4, 12}, DType::f32, "test");
    ops::fill(r.device->compute(), in, 1);
    for (int step = 0; step < 2; ++step) {
      runtime.clear_trace();
      run_pass(model, in, in);
      optimizer.step(0.01);
    }
    r.device->compute().synchronize();
    using ::testing::ElementsAre;
    EXPECT_THAT(
        runtime.trace(),
        ElementsAre(
            "unshard root", "unshard shells.0", "forward root", "unshard shells.0.inner", "forward shells.0",
            "unshard shells.1", "forward shells.0.inner", "unshard shells.1.inner", "forward shells.1",
            "unshard shells.2", "forward shells.1.inner", "unshard shells.2.inner", "forward shells.2",
            "forward shells.2.inner",  //
            "unshard shells.2", "backward root", "unshard shells.2.inner", "backward shells.2",
            "unshard shells.1", "backward shells.2.inner", "post shells.2.inner", "post shells.2",
            "unshard shells.1.inner", "backward shells.1", "unshard shells.0", "backward shells.1.inner",
            "post shells.1.inner", "post shells.1", "unshard shells.0.inner", "backward shells.0",
            "backward shells.0.inner", "post shells.0.inner", "post shells.0", "post root"));
    for (auto& line : r.device->allocator().table())
      if (line.name.starts_with("unsharded")) {
        EXPECT_EQ(line.peak_count, 5) << line.name << ": two each for shells and inner blocks, the root's";
      }
  });
}

TEST(Robustness, Bf16ReductionAgreesAcrossLayoutsUnderHsdpToo) {
  for (const int replicas : {2, 4}) {
    ToyRun run{.ranks = 4, .replicas = replicas, .accumulate = 2};
    run.options.reduce_dtype = DType::bf16;
    run.options.outer = Outer::optim;
    const ToyResult ragged = run_toy(run);
    run.options.layout = LayoutPolicy::even_rows;
    const ToyResult even = run_toy(run);
    EXPECT_EQ(ragged.norms, even.norms) << replicas;
    EXPECT_EQ(ragged.weights, even.weights) << replicas;
  }
}

TEST(Robustness, OddReplicaArrangementsAgreeToRounding) {
  ToyRun run{.ranks = 6};
  const ToyResult flat = run_toy(run);
  for (const int replicas : {2, 3}) {
    run.replicas = replicas;
    const ToyResult got = run_toy(run);
    for (size_t i = 0; i < flat.losses.size(); ++i)
      EXPECT_NEAR(got.losses[i], flat.losses[i], 1e-5 * flat.losses[i]) << replicas;
  }
}

TEST(Robustness, WeightsOfAnyFloatTypeComeInAndStrangersAreNamed) {
  const auto path = std::filesystem::temp_directory_path() / ("sherd_weights_" + std::to_string(getpid()));
  {
    // bf16, f16 and f32 in one file, in another order than the model's.
    SafetensorsWriter w(path, {{"head.weight", DType::bf16, {11, 4}},
                               {"gain.weight", DType::f16, {1}},
                               {"embed.weight", DType::f32, {11, 4}}});
    for (int i = 0; i < 44; ++i) {
      const bf16 v(static_cast<float>(i));
      w.append(&v, sizeof v);
    }
    const f16 half(0.5f);
    w.append(&half, sizeof half);
    for (int i = 0; i < 44; ++i) {
      const float v = -static_cast<float>(i);
      w.append(&v, sizeof v);
    }
    w.finish();
  }
  launch(3, [&](RankContext& r) {
    ToyModel model(4, 4, 0);
    fully_shard(model, mesh_of(r));
    import_weights(model, path);
    Stream& s = r.device->compute();
    const auto head = ops::to_floats(s, model.head_.dtensor().full_tensor(s));
    const auto table = ops::to_floats(s, model.table_.dtensor().full_tensor(s));
    for (size_t i = 0; i < 44; ++i) {
      EXPECT_EQ(head[i], static_cast<float>(i));
      EXPECT_EQ(table[i], -static_cast<float>(i));
    }
    EXPECT_EQ(ops::to_floats(s, model.gain_.dtensor().full_tensor(s)), std::vector<float>{0.5f});
  });
  launch(1, [&](RankContext& r) {
    ToyModel model(4, 4, 1);
    fully_shard(model, mesh_of(r));
    try {
      import_weights(model, path);
      FAIL();
    } catch (const InvalidArgument& e) {
      for (const char* name : {"blocks.0.up.weight", "blocks.0.down.weight", "blocks.0.norm.weight"})
        EXPECT_THAT(e.what(), HasSubstr(name));
    }
  });
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace sherd::test
