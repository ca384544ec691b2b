// Exceptions inside forward and backward: the model is as usable afterwards as before, and says what to do
// first.

#include "support/chain.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using Weights = std::vector<std::vector<float>>;

struct Thrown : std::runtime_error {
  Thrown() : std::runtime_error("a bad batch") {}
};

// Throws at the n-th point from now on.
void throw_at(Chain& model, int n) {
  model.at_point = [n]() mutable {
    if (n-- == 0) throw Thrown();
  };
}

int points_of(ChainRig& rig, const std::function<void()>& run) {
  int points = 0;
  rig.model.at_point = [&] { ++points; };
  run();
  rig.model.at_point = nullptr;
  return points;
}

// Steps of `batches` microbatches. With `bad`, each is preceded by aborted steps: one for every
// point at which the last microbatch's forward or backward may end.
Weights train(const FullyShardOptions& options, bool bad, int batches, const RootOptions& root = {}) {
  Weights all;
  const bool whole = options.layout == LayoutPolicy::whole_param;  // of Muon's matrices
  launch(2, [&](RankContext& r) {
    ChainRig rig(r, options, 3, 1, whole ? Algorithm::muon : Algorithm::adamw, root);
    int points = 0;
    for (int step = 0; step < 3; ++step) {
      for (int at = 0; bad && at < points; ++at) {
        for (int m = 0; m + 1 < batches; ++m) {
          runtime_of(rig.model).set_last_microbatch(false);
          rig.pass(1000 + m);
        }
        runtime_of(rig.model).set_last_microbatch(true);
        throw_at(rig.model, at);
        EXPECT_THROW(rig.pass(1001), Thrown) << at;
        rig.model.at_point = nullptr;
        reset_step(rig.model);
      }
      const int seen = points_of(rig, [&] { rig.step(step * batches, batches); });
      points = seen / batches;
    }
    EXPECT_GT(points, 20);
    const Weights mine = rig.weights();
    if (r.world->rank() == 0) all = mine;
  });
  return all;
}

TEST(Exception, AnywhereInAPassTheBatchIsSkippedAndNothingOfItRemains) {
  for (Strategy s : kEveryStrategy)
    for (const bool overlap : {true, false})
      EXPECT_EQ(train({.strategy = s}, true, 1, {.overlap_reduce = overlap}),
                train({.strategy = s}, false, 1, {.overlap_reduce = overlap}))
          << name_of(s);
}

TEST(Exception, InAMicrobatchItTakesTheWholeStepAlong) {
  for (Strategy s : kEveryStrategy)
    EXPECT_EQ(train({.strategy = s}, true, 2), train({.strategy = s}, false, 2)) << name_of(s);
}

TEST(Exception, NothingRemainsInBucketsThatSpanUnitsEither) {
  for (const Strategy s : {Strategy::optim, Strategy::optim_grads}) {
    for (const int64_t size : {0, 1}) {
      const FullyShardOptions o = {
          .strategy = s, .layout = LayoutPolicy::whole_param, .bucket_elements = size};
      for (const int batches : {1, 2})
        EXPECT_EQ(train(o, true, batches), train(o, false, batches)) << name_of(s) << ", buckets of " << size;
    }
  }
}

TEST(Exception, AStepThatWasBrokenOffGoesNowhereUntilItIsReset) {
  for (Strategy s : kEveryStrategy) {
    launch(2, [&](RankContext& r) {
      ChainRig rig(r, {.strategy = s});
      rig.step(0);
      const Weights before = rig.weights();
      const int forward = points_of(rig, [&] { rig.forward(); });
      reset_step(rig.model);
      for (const bool in_backward : {false, true}) {
        throw_at(rig.model, in_backward ? forward + 6 : 5);
        EXPECT_THROW(rig.pass(1), Thrown);
        rig.model.at_point = nullptr;
        const auto says = in_backward ? HasSubstr("the backward of unit 'links.1' ended with an exception")
                                      : HasSubstr("the forward of unit 'links.1' ended with an exception");
        const auto what_to_do = AllOf(says, HasSubstr("reset_step()"));
        EXPECT_THAT(message_of<InvalidArgument>([&] { rig.forward(); }), what_to_do);
        EXPECT_THAT(message_of<InvalidArgument>([&] { rig.taped.forward(rig.model.link(0), rig.in); }),
                    what_to_do);
        EXPECT_THAT(message_of<InvalidArgument>([&] { rig.model.unit()->pre_backward(); }), what_to_do);
        EXPECT_THAT(message_of<InvalidArgument>([&] { clip_grad_norm(rig.model, 1); }), what_to_do);
        EXPECT_THAT(message_of<InvalidArgument>([&] { rig.optimizer->step(0.1); }), what_to_do);
        rig.model.set_training(false);  // reading the model is allowed
        rig.forward();
        rig.model.set_training(true);
        EXPECT_EQ(rig.weights(), before);
        reset_step(rig.model);
        EXPECT_THAT(message_of<InvalidArgument>([&] { rig.optimizer->step(0.1); }),
                    HasSubstr("needs final gradients"));
        EXPECT_THAT(message_of<InvalidArgument>([&] { rig.model.unit()->pre_backward(); }),
                    HasSubstr("without a forward"));
      }
      rig.step(1);
      EXPECT_NE(rig.weights(), before);
    });
  }
}

TEST(Exception, InAnEvaluationNeedsNoReset) {
  for (Strategy s : kEveryStrategy) {
    Weights got[2];
    for (const bool bad : {false, true}) {
      launch(2, [&](RankContext& r) {
        ChainRig rig(r, {.strategy = s});
        for (int step = 0; step < 2; ++step) {
          rig.step(step);
          rig.model.set_training(false);
          const int points = points_of(rig, [&] { rig.forward(); });
          for (int at = 0; bad && at < points; ++at) {
            throw_at(rig.model, at);
            EXPECT_THROW(rig.forward(), Thrown);
            rig.model.at_point = nullptr;
          }
          rig.model.set_training(true);
        }
        const Weights mine = rig.weights();
        if (r.world->rank() == 0) got[bad] = mine;
      });
    }
    EXPECT_EQ(got[0], got[1]) << name_of(s);
  }
}

TEST(Exception, AfterAResetCollectivesAndPrefetchAreThoseOfEveryStep) {
  launch(2, [](RankContext& r) {
    ChainRig rig(r, {});
    ShardRuntime& runtime = runtime_of(rig.model);
    rig.step(0);
    const auto traced = [&] {
      runtime.enable_trace(true);
      runtime.clear_trace();
      rig.step(1);
      runtime.enable_trace(false);
      return runtime.trace();
    };
    const auto want = traced();
    for (const int at : {4, 14}) {  // in the second link's forward, in its backward
      throw_at(rig.model, at);
      EXPECT_THROW(rig.pass(2), Thrown);
      rig.model.at_point = nullptr;
      reset_step(rig.model);
      EXPECT_EQ(traced(), want);
    }
  });
}

TEST(Exception, CaughtByTheEnclosingModuleContinuesWithoutReset) {
  // Tries its link with an exception first, then again.
  struct Retrying : nn::Module<Retrying> {
    explicit Retrying(Chain& points) : link(points), chain(points) {
      child("link", link);
      gain = param("gain.weight", {1}, constant(1));
    }
    Chain::Link link;
    Chain& chain;
    Parameter gain;
    bool fails = false;
    nn::Var forward(const nn::Var& in) {
      const nn::Var x = with_gradients(in, {gain}, [this] { gain.grad(); });
      if (fails) {
        throw_at(chain, 1);
        EXPECT_THROW(link(x), Thrown);
        chain.at_point = nullptr;
      }
      return link(x);
    }
  };
  for (Strategy s : kEveryStrategy) {
    Weights got[2];
    for (const bool fails : {false, true}) {
      launch(2, [&](RankContext& r) {
        Chain points(0);
        Retrying model(points);
        const DeviceMesh mesh = mesh_of(r);
        fully_shard(model.link, mesh, {.strategy = s});
        fully_shard(model, mesh, {.strategy = s});
        const Tensor x = Tensor::empty(*r.device, {4, Chain::kWidth}, DType::f32, "test");
        Stream& stream = r.device->compute();
        ops::random_normal(stream, x, 48 * r.world->rank(), 1, "x", 0, 1);
        model.fails = fails;
        run_pass(model, x, x);
        runtime_of(model).wait_gradients();
        std::vector<std::vector<float>> mine;
        for (auto& [name, p] : model.named_parameters())
          mine.push_back(ops::to_floats(stream, p.grad_shard()));
        if (r.world->rank() == 0) got[fails] = mine;
      });
    }
    EXPECT_EQ(got[0], got[1]) << name_of(s);
  }
}

TEST(Exception, AForwardWhoseBackwardIsLeftOutCostsTheNextStepNothing) {
  for (Strategy s : kEveryStrategy) {
    launch(2, [&](RankContext& r) {
      ChainRig rig(r, {.strategy = s});
      std::vector<int64_t> calls;
      for (const bool left_out : {false, true, false}) {
        if (left_out) rig.forward(), rig.taped.tape.clear();  // its loss is unusable, say
        rig.sync();
        CommCounts before = r.world->counts();
        rig.pass(0);
        rig.sync();
        CommCounts after = r.world->counts();
        calls.push_back(after["reduce_scatter"].calls + after["all_reduce"].calls -
                        before["reduce_scatter"].calls - before["all_reduce"].calls);
        rig.optimizer->step(0.01);
      }
      EXPECT_EQ(calls, std::vector<int64_t>(3, 4)) << name_of(s);
    });
  }
}

TEST(Exception, MissingGradientsCanBeResetToo) {
  launch(2, [](RankContext& r) {
    ChainRig rig(r, {});
    rig.step(0);
    rig.model.order = {0, 2};
    EXPECT_THAT(message_of<InvalidArgument>([&] { rig.pass(1); }), HasSubstr("links.1.up.weight"));
    reset_step(rig.model);
    rig.model.order = {0, 1, 2};
    rig.step(1);
    rig.sync();
  });
}

TEST(Exception, AResetInsideAPassIsRefused) {
  launch(1, [](RankContext& r) {
    ChainRig rig(r, {});
    rig.model.at_point = [&] { reset_step(rig.model); };
    EXPECT_THAT(message_of<InvalidArgument>([&] { rig.forward(); }),
                HasSubstr("inside the forward or backward"));
    rig.model.at_point = nullptr;
    reset_step(rig.model);
    rig.step(0);
  });
}

TEST(Exception, ARankThatSkipsAloneEndsAllWithANamedError) {
  for (Strategy s : {Strategy::no_shard, Strategy::optim_grads_params}) {
    for (const bool after_backward : {false, true}) {  // then no collective is missing but the reset's own
      const auto skip = [&](RankContext& r) {
        ChainRig rig(r, {.strategy = s});
        rig.step(0);
        if (r.world->rank() == 1) {
          if (!after_backward) throw_at(rig.model, 14);
          try {
            rig.pass(1);
          } catch (const Thrown&) {
          }
          rig.model.at_point = nullptr;
          reset_step(rig.model);
        } else {
          rig.step(1);
        }
        rig.step(2);
        rig.sync();
      };
      EXPECT_THROW(launch(2, {.timeout = std::chrono::milliseconds(200)}, skip), Error)
          << name_of(s) << after_backward;
    }
  }
}

TEST(Exception, VerbsInTheWrongOrderAreRefused) {
  launch(1, [](RankContext& r) {
    ChainRig rig(r, {});
    Unit& unit = *rig.model.link(0).unit();
    EXPECT_THAT(message_of<InvalidArgument>([&] { unit.post_forward(); }),
                HasSubstr("'links.0' without its pre_forward()"));
    EXPECT_THAT(message_of<InvalidArgument>([&] { unit.post_backward(); }),
                HasSubstr("'links.0' without its pre_backward()"));
    unit.cancel_forward();  // nothing to cancel
    unit.pre_forward(ForwardKind::recorded);
    EXPECT_THAT(message_of<InvalidArgument>([&] { unit.post_backward(); }),
                HasSubstr("without its pre_backward()"));
    unit.cancel_backward();  // of another kind
    unit.post_forward();
    unit.pre_backward();
    EXPECT_THAT(message_of<InvalidArgument>([&] { unit.post_forward(); }),
                HasSubstr("without its pre_forward()"));
    unit.cancel_forward();
    unit.cancel_backward();
    reset_step(rig.model);
    rig.step(0);
  });
}

TEST(Exception, TheRootDoesNotEndWhileAnotherUnitIsInUse) {
  for (Strategy s : kEveryStrategy) {
    launch(2, [&](RankContext& r) {
      ChainRig rig(r, {.strategy = s});
      rig.step(0);
      const Weights before = rig.weights();
      rig.load(1);
      rig.forward();
      Unit& unit = *rig.model.link(1).unit();
      unit.pre_backward();  // and does not end it: its gradients would be left out
      EXPECT_THAT(message_of<InvalidArgument>([&] { rig.backward(); }),
                  AllOf(HasSubstr("post_backward() of the root"), HasSubstr("in use: 'links.1'")));
      unit.cancel_backward();
      reset_step(rig.model);
      EXPECT_EQ(rig.weights(), before);
      rig.step(1);
    });
  }
}

}  // namespace
}  // namespace sherd::test
