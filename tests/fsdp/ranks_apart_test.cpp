// Ranks that do different things end with an error that says which, and continue after errors that all have
// caught.

#include <chrono>
#include <mutex>
#include <optional>

#include <sherd/comm/core/same_value.h>
#include <sherd/fsdp/weights_change.h>

#include "support/message_of.h"
#include "support/rig.h"

namespace sherd::test {
namespace {

TEST(RanksApart, EqualUnitsUsedInDifferentOrderAreNamedBoth) {
  for (const Strategy strategy : {Strategy::optim_grads_params, Strategy::optim_grads, Strategy::optim}) {
    SCOPED_TRACE(static_cast<int>(strategy));
    std::mutex mutex;
    std::vector<std::string> texts;
    try {
      launch(2, [&](RankContext& r) {
        Rig rig(r, {.strategy = strategy});
        if (r.world->rank() == 1) std::swap(rig.model.blocks_[0], rig.model.blocks_[1]);
        try {
          rig.step();
          rig.sync();
        } catch (const CommError& e) {
          std::lock_guard lock(mutex);
          texts.emplace_back(e.what());
          throw;
        }
      });
      ADD_FAILURE() << "it trained";
    } catch (const CommError& e) {
      texts.emplace_back(e.what());
    }
    EXPECT_THAT(texts, SizeIs(3));
    EXPECT_THAT(texts, Each(AllOf(HasSubstr("of unit 'blocks.0'"), HasSubstr("of unit 'blocks.1'"),
                                  HasSubstr("rank 0 called"), HasSubstr("rank 1 called"))));
  }
}

TEST(RanksApart, TheDigestOfCallsDependsOnTheOrderOfUnits) {
  const auto digest = [](bool swapped) {
    std::vector<uint64_t> digests(2);
    launch(2, [&](RankContext& r) {
      Rig rig(r, {});
      if (swapped) std::swap(rig.model.blocks_[0], rig.model.blocks_[1]);
      r.world->reset_digest();
      rig.step();
      digests[static_cast<size_t>(r.world->rank())] = r.world->digest();
      rig.sync();
    });
    EXPECT_EQ(digests[0], digests[1]);
    return digests[0];
  };
  EXPECT_EQ(digest(false), digest(false));
  EXPECT_NE(digest(false), digest(true));
}

/// One parameter besides the toy's.
struct OneMore final : ToyModel {
  OneMore(Init init, int64_t rows) : ToyModel(8, 8, 1) { more = param("more.weight", {rows, 3}, init); }
  Parameter more;
};

struct Options : FullyShardOptions {
  RootOptions root;
};

std::string refusal(const std::function<void(int rank, Options&, Init&, int64_t& rows)>& change) {
  std::mutex mutex;
  std::vector<std::string> texts;
  try {
    launch(3, [&](RankContext& r) {
      Options o;
      Init init = normal(0.5f);
      int64_t rows = 4;
      change(r.world->rank(), o, init, rows);
      OneMore model(init, rows);
      try {
        fully_shard(model, DeviceMesh(r.world, {{o.shard_dim, 3}}), o, o.root);
      } catch (const ShapeMismatch& e) {
        std::lock_guard lock(mutex);
        texts.emplace_back(e.what());
        throw;
      }
    });
  } catch (const ShapeMismatch&) {
  }
  EXPECT_THAT(texts, SizeIs(3));
  return texts.empty() ? "" : texts.front();
}

TEST(RanksApart, DifferentInitialValuesAreRefusedWithTheParameter) {
  for (const Init& other : {normal(0.25f), constant(0.5f), Init{1, 0.5f}})
    EXPECT_THAT(refusal([&](int rank, auto&, Init& init, auto&) {
                  if (rank == 1) init = other;
                }),
                AllOf(HasSubstr("rank 1 ("), HasSubstr("differs from the others"),
                      HasSubstr("in the initial values of parameter 'more.weight'"), Not(HasSubstr("head"))));
}

TEST(RanksApart, EveryOptionAndShapeMustBeAlike) {
  const auto changed = [](const std::function<void(Options&)>& change) {
    return refusal([&](int rank, Options& o, auto&, auto&) {
      if (rank == 2) change(o);
    });
  };
  EXPECT_THAT(changed([](auto& o) { o.cast_inputs = false; }), HasSubstr("an option of unit 'root'"));
  EXPECT_THAT(changed([](auto& o) { o.root.overlap_reduce = false; }),
              HasSubstr("rank 2 has root options (prefetch 1, overlap_reduce false, "));
  EXPECT_THAT(changed([](auto& o) { o.root.seed = 3; }),
              HasSubstr("allow_unused false, seed 3), rank 0 has"));
  EXPECT_THAT(changed([](auto& o) { o.root.ignored = {"more.weight"}; }),
              HasSubstr("rank 2 has ignored parameter 'more.weight', rank 0 has unit 'root'"));
  EXPECT_THAT(changed([](auto& o) { o.shard_dim = "data"; }),
              HasSubstr("rank 2 has unit 'root' (optim_grads_params, mesh data 3), rank 0 has"));
  EXPECT_THAT(changed([](auto& o) { o.root.prefetch = 2; }),
              HasSubstr("rank 2 has root options (prefetch 2, "));
  EXPECT_THAT(changed([](auto& o) { o.padding_budget = 0.5; }), HasSubstr("the layout of unit 'root'"));
  EXPECT_THAT(refusal([](int rank, auto&, auto&, int64_t& rows) { rows += rank == 0; }),
              AllOf(HasSubstr("rank 0 ("),
                    HasSubstr("rank 0 has parameter 'more.weight' of unit 'root' ([5, 3] f32), "
                              "rank 1 has parameter 'more.weight' of unit 'root' ([4, 3] f32)")));
}

TEST(RanksApart, OtherWrapsAreNamedBeforeAnyRankWaits) {
  struct Case {
    const char* what;
    // Action of rank 2; `pair` is the mesh of its replica alone.
    std::function<void(ToyModel&, const DeviceMesh& mesh, const DeviceMesh& pair, FullyShardOptions)> wrap;
    const char* want;
  };
  const auto wrap_all = [](ToyModel& m, const DeviceMesh& mesh, FullyShardOptions o) {
    for (auto& block : m.blocks_) fully_shard(*block, mesh, o);
    fully_shard(m, mesh, o);
  };
  const Case cases[] = {
      {"no unit", [](auto& m, auto& mesh, auto&, auto o) { fully_shard(m, mesh, o); },
       "rank 2 has unit 'root' (optim_grads_params, mesh replicate 2 x shard 2), rank 0 has unit 'blocks.0' "
       "(optim_grads_params"},
      {"a unit less",
       [](auto& m, auto& mesh, auto&, auto o) {
         fully_shard(*m.blocks_[0], mesh, o);
         fully_shard(m, mesh, o);
       },
       "rank 2 has unit 'root' (optim_grads_params, mesh replicate 2 x shard 2), rank 0 has unit 'blocks.1' "
       "(optim_grads_params"},
      {"a strategy",
       [](auto& m, auto& mesh, auto&, auto o) {
         fully_shard(*m.blocks_[0], mesh, o);
         o.strategy = Strategy::no_shard;
         fully_shard(*m.blocks_[1], mesh, o);
         o.strategy = Strategy::optim_grads_params;
         fully_shard(m, mesh, o);
       },
       "rank 2 has unit 'blocks.1' (no_shard, mesh replicate 2 x shard 2), rank 0 has unit 'blocks.1' "
       "(optim_grads_params"},
      {"a dtype",
       [](auto& m, auto& mesh, auto&, auto o) {
         m.blocks_[1]->up_.set_compute_dtype(DType::bf16);
         for (auto& block : m.blocks_) fully_shard(*block, mesh, o);
         fully_shard(m, mesh, o);
       },
       "rank 2 has parameter 'blocks.1.up.weight' of unit 'blocks.1' ([8, 8] bf16), rank 0 has"},
      {"another mesh",
       [](auto& m, auto& mesh, auto& pair, auto o) {
         fully_shard(*m.blocks_[0], mesh, o);
         fully_shard(*m.blocks_[1], pair, o);
         fully_shard(m, mesh, o);
       },
       "rank 2 has unit 'blocks.1' (optim_grads_params, mesh shard 2), rank 0 has unit 'blocks.1' "
       "(optim_grads_params, mesh replicate 2 x shard 2)"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    std::mutex mutex;
    std::vector<std::string> texts;
    LaunchOptions options;
    options.timeout = std::chrono::seconds(20);
    try {
      test::launch(4, options, [&](RankContext& r) {
        ToyModel model(8, 8, 2);
        const DeviceMesh mesh(r.world, {{"replicate", 2}, {"shard", 2}}), pair = mesh.submesh({"shard"});
        try {
          r.world->rank() == 2 ? c.wrap(model, mesh, pair, {}) : wrap_all(model, mesh, {});
        } catch (const std::exception& e) {
          std::lock_guard lock(mutex);
          texts.emplace_back(e.what());
          throw;
        }
      });
      ADD_FAILURE() << "it was accepted";
    } catch (const std::exception&) {
    }
    EXPECT_THAT(texts, SizeIs(4));
    EXPECT_THAT(texts,
                Each(AllOf(HasSubstr("rank 2 ("), HasSubstr("the first difference"), HasSubstr(c.want))));
  }
}

enum class At { before, in_forward, between, on_a_stream };

/// Trains three steps; the second one fails on one rank at first, and `failures` times in all.
std::vector<std::vector<float>> train(Strategy strategy, int replicas, At at, int failures) {
  std::vector<std::vector<float>> weights(4);
  launch(4, [&](RankContext& r) {
    Rig rig(r, {.strategy = strategy}, replicas);
    int left = failures;
    for (int step = 0; step < 3;) {
      const bool fails = step == 1 && left > 0 && r.world->rank() == 1 + left % 2;
      const Tensor targets = rig.model.targets;
      try {
        if (fails && at == At::before) throw OutOfMemory("the batch");
        if (fails && at == At::in_forward)
          rig.model.targets = Tensor::empty(*r.device, {1, 2}, DType::i32, "test");
        rig.forward();
        if (fails && at == At::between) throw OutOfMemory("between");
        if (fails && at == At::on_a_stream)
          r.device->compute().submit("test",
                                     [](ExecutionContext&) { throw OutOfMemory("scratch of a kernel"); });
        rig.backward();
        clip_grad_norm(rig.model, 1.0);
        r.world->barrier(r.device->compute());  // all ranks have done this step, or none
        rig.sync();
        rig.optimizer->step(0.01);
        ++step;
      } catch (const Error&) {
        rig.model.targets = targets;
        r.world->recover();
        runtime_of(rig.model).recovered();
        --left;
      }
    }
    rig.sync();
    EXPECT_EQ(left, 0);
    for (auto& [name, p] : rig.model.named_parameters()) {
      const Tensor shard = p.shard();
      auto& mine = weights[static_cast<size_t>(r.world->rank())];
      mine.insert(mine.end(), shard.data<float>(), shard.data<float>() + shard.numel());
    }
  });
  return weights;
}

TEST(RanksApart, AStepThatFailedOnOneRankIsDoneAgainAfterRecovery) {
  for (const auto& [strategy, replicas] : {std::pair{Strategy::optim_grads_params, 1},
                                           {Strategy::optim_grads_params, 2},
                                           {Strategy::optim, 1}}) {
    const auto expected = train(strategy, replicas, At::before, 0);
    for (const At at : {At::before, At::in_forward, At::between, At::on_a_stream}) {
      SCOPED_TRACE(static_cast<int>(at));
      EXPECT_EQ(train(strategy, replicas, at, 1), expected);
    }
    EXPECT_EQ(train(strategy, replicas, At::between, 2), expected);
  }
}

TEST(RanksApart, MixedWeightsStaySoUntilAllAreRewritten) {
  launch(2, [&](RankContext& r) {
    Rig rig(r, {});
    const auto gradients = [&] {
      rig.forward();
      rig.backward();
      clip_grad_norm(rig.model, 1.0);
      rig.sync();
    };
    const auto step = [&](double lr) {
      gradients();
      rig.optimizer->step(lr);
      rig.sync();
    };
    step(0.01 + r.world->rank());
    gradients();  // the norm shows it
    ShardRuntime& runtime = runtime_of(rig.model);
    EXPECT_THROW(rig.optimizer->step(0.01), CommError);
    r.world->recover();
    runtime.recovered();
    EXPECT_THROW(step(0.01), CommError) << "recovery mends no weights";
    r.world->recover();
    runtime.recovered();
    runtime.weights_replaced();
    for (int i = 0; i < 3; ++i) EXPECT_NO_THROW(step(0.01));
  });
}

TEST(RanksApart, OptimizersMustBeAlikeAndSoMustLearningRates) {
  const auto error =
      [](const std::function<void(int rank, OptimizerOptions&, double& lr)>& change) -> std::string {
    try {
      launch(2, [&](RankContext& r) {
        OptimizerOptions o;
        double lr = 0.01;
        change(r.world->rank(), o, lr);
        Rig rig(r, {});
        rig.optimizer.reset();
        rig.optimizer.emplace(rig.model, rig.routes, o);
        for (int step = 0; step < 3; ++step) {
          rig.forward();
          rig.backward();
          rig.optimizer->step(lr);
          rig.sync();
        }
      });
    } catch (const ShapeMismatch& e) {
      return e.what();
    } catch (const CommError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(error([](auto&&...) {}), "");
  const auto options = HasSubstr("Optimizer: the ranks were given different routings or options");
  EXPECT_THAT(error([](int rank, auto& o, auto&) { o.weight_decay = rank * 0.1; }), options);
  EXPECT_THAT(error([](int rank, auto& o, auto&) { o.adamw.beta2 -= rank * 1e-3; }), options);
  EXPECT_THAT(error([](int rank, auto& o, auto&) { o.skip_non_finite = rank == 0; }), options);
  EXPECT_THAT(error([](int rank, auto&, double& lr) { lr += rank * 1e-3; }),
              HasSubstr("different learning rates"));
}

TEST(RanksApart, AccumulatedGradientsDroppedOnOneRankOnlyAreDetected) {
  const auto error = [](bool alike) -> std::string {
    try {
      launch(2, [&](RankContext& r) {
        Rig rig(r, {});
        ShardRuntime& runtime = runtime_of(rig.model);
        runtime.set_last_microbatch(false);
        rig.forward();
        rig.backward();
        if (alike || r.world->rank() == 0) zero_grad(rig.model);
        runtime.set_last_microbatch(true);
        rig.step();  // its norm compares; the result may be known in this step or the next, on one rank or both
        rig.sync();
        rig.forward();
        rig.backward();
        rig.optimizer->step(0.01);
        rig.sync();
      });
    } catch (const CommError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(error(true), "");
  EXPECT_THAT(error(false), HasSubstr("in an earlier step the ranks used different units"));
}

TEST(RanksApart, AnUpdateThatTheFailureCutOffIsNotGoneOnWith) {
  std::mutex mutex;
  std::vector<std::string> texts;
  launch(2, [&](RankContext& r) {
    Rig rig(r, {});
    rig.forward();
    rig.backward();
    clip_grad_norm(rig.model, 1.0);
    r.world->barrier(r.device->compute());
    rig.sync();
    ShardRuntime& runtime = runtime_of(rig.model);
    if (r.world->rank() == 0) {
      rig.optimizer->step(0.01);
      r.device->compute().synchronize();
    } else {
      WeightsChange change(runtime);
      r.device->compute().submit("test", [](ExecutionContext&) { throw OutOfMemory("half way"); });
    }
    r.world->recover();
    try {
      runtime.recovered();
    } catch (const Error& e) {
      std::lock_guard lock(mutex);
      texts.emplace_back(e.what());
    }
    // Changes weights as a checkpoint does; then the ranks are equal, and train.
    WeightsChange change(runtime);
    for (auto& [name, p] : rig.model.named_parameters()) ops::fill(r.device->compute(), p.shard(), 0.5f);
    change.end();
    rig.step();
    rig.sync();
    r.world->recover();
    EXPECT_NO_THROW(runtime.recovered());
  });
  EXPECT_THAT(texts, SizeIs(2));
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("ranks in the middle of it: 1"), HasSubstr("by rank: 1, 0"),
                                HasSubstr("load a checkpoint"))));
}

TEST(RanksApart, WhatCollectivesServeIsComparedByTheNormsAllReduce) {
  for (const bool clips : {true, false}) {
    for (const bool differ : {false, true}) {
      SCOPED_TRACE(::testing::Message() << clips << differ);
      const auto run = [&] {
        launch(2, [&](RankContext& r) {
          Rig rig(r, {});
          const auto alone = r.world->split(r.world->rank(), 0);
          for (int step = 0; step < 2; ++step) {
            rig.forward();
            rig.backward();
            // A collective of one rank alone: no check at the call can see it.
            if (differ && r.world->rank() == 1) {
              const Serving serving(*alone, Purpose("unit of rank 1"));
              alone->barrier(r.device->compute());
            }
            if (clips) clip_grad_norm(rig.model, 1.0);
            rig.optimizer->step(0.01);
            rig.sync();
          }
        });
      };
      if (!differ) {
        EXPECT_NO_THROW(run());
        continue;
      }
      EXPECT_THAT(message_of<CommError>([&] { run(); }), HasSubstr("used different units"));
    }
  }
}

// The gradients of a rank that does not clip, or by another norm, are not those of the others.
TEST(RanksApart, ClippingOnSomeRanksAloneIsNamed) {
  const auto train = [](std::optional<double> norm_of_rank_1) {
    LaunchOptions options;
    options.timeout = std::chrono::seconds(3);
    sherd::launch(2, options, [&](RankContext& r) {
      Rig rig(r, {});
      for (int step = 0; step < 2; ++step) {
        rig.forward();
        rig.backward();
        const std::optional<double> norm = r.world->rank() == 1 ? norm_of_rank_1 : 1.0;
        if (norm) clip_grad_norm(rig.model, *norm);
        rig.optimizer->step(0.01);
        rig.sync();
      }
    });
  };
  EXPECT_NO_THROW(train(1.0));
  EXPECT_THAT(
      message_of<CommError>([&] { train(std::nullopt); }),
      AllOf(HasSubstr("for clip_grad_norm()"), HasSubstr("for Optimizer::step without clip_grad_norm()")));
  EXPECT_THAT(message_of<CommError>([&] { train(2.0); }),
              HasSubstr("clip_grad_norm() with different norms or on some ranks alone"));
}

}  // namespace
}  // namespace sherd::test
