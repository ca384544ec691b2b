// Units that are used more than once at a time or out of turn: shared by wrapped modules, recursive, computed
// again in backward.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>

#include "support/chain.h"

namespace sherd::test {
namespace {

using Weights = std::vector<std::vector<float>>;

CommCounts counted(ChainRig& rig, const std::function<void()>& f) {
  rig.sync();
  CommCounts before = rig.rank.world->counts();
  f();
  rig.sync();
  CommCounts after = rig.rank.world->counts();
  for (auto& [name, c] : before) after[name].calls -= c.calls;
  return after;
}

TEST(Recompute, CostsNoCollectiveAndChangesNoBit) {
  for (Strategy s : kEveryStrategy) {
    for (const int prefetch : {0, 1, 2}) {
      Weights got[2];
      for (const bool recompute : {false, true}) {
        launch(2, [&](RankContext& r) {
          ChainRig rig(r, {.strategy = s}, 4, 1, Algorithm::adamw, {.prefetch = prefetch});
          rig.model.recompute = recompute;
          for (int step = 0; step < 3; ++step) {
            CommCounts calls = counted(rig, [&] { rig.pass(step); });
            const int64_t units = static_cast<int64_t>(rig.model.links()) + 1;
            if (s == Strategy::optim_grads_params) {
              EXPECT_EQ(calls["all_gather"].calls, units + units - 1);
            }
            EXPECT_EQ(calls["reduce_scatter"].calls + calls["all_reduce"].calls, units)
                << name_of(s) << (recompute ? " recomputed" : "");
            rig.optimizer->step(0.01);
          }
          const Weights mine = rig.weights();
          if (r.world->rank() == 0) got[recompute] = mine;
        });
      }
      EXPECT_EQ(got[0], got[1]) << name_of(s) << " prefetch " << prefetch;
    }
  }
}

TEST(Recompute, GathersAheadAsWithoutIt) {
  launch(2, [](RankContext& r) {
    ChainRig rig(r, {});
    rig.model.recompute = true;
    ShardRuntime& runtime = runtime_of(rig.model);
    rig.step(0);
    runtime.enable_trace(true);
    rig.pass(1);
    EXPECT_THAT(
        runtime.trace(),
        ::testing::ElementsAre("unshard root", "unshard links.0", "forward root", "unshard links.1",
                               "forward links.0", "unshard links.2", "forward links.1", "forward links.2",  //
                               "unshard links.2", "backward root",                                          //
                               "recompute links.2", "unshard links.1", "backward links.2", "post links.2",
                               "recompute links.1", "unshard links.0", "backward links.1", "post links.1",
                               "recompute links.0", "backward links.0", "post links.0", "post root"));
    rig.sync();
  });
}

TEST(Recompute, OfAUnitThatRanTwiceIsRightAsWell) {
  for (Strategy s : kEveryStrategy) {
    Weights got[2];
    for (const bool recompute : {false, true}) {
      launch(2, [&](RankContext& r) {
        ChainRig rig(r, {.strategy = s});
        rig.model.recompute = recompute;
        rig.model.order = {0, 1, 2, 0, 1};
        for (int step = 0; step < 2; ++step) rig.step(2 * step, 2);
        const Weights mine = rig.weights();
        if (r.world->rank() == 0) got[recompute] = mine;
      });
    }
    EXPECT_EQ(got[0], got[1]) << name_of(s);
  }
}

// y = norm(shared(own(x))): a wrapped block that calls a module which others call, too.
struct Caller : nn::Module<Caller> {
  explicit Caller(ToyBlock& shared) : shared_(shared), own_(12, 20) {
    child("own", own_);
    gain_ = param("gain.weight", {12}, constant(1));
  }
  void adopt() { child("shared", shared_); }
  nn::Var forward(const nn::Var& in) {
    // The whole parameters of this unit are still there after the others' backward, and may be added to.
    const nn::Var x = with_gradients(
        in, {gain_}, [this] { EXPECT_TRUE(gain_.data().defined() && gain_.grad().defined()); });
    return nn::rms_norm(shared_(own_(x)), gain_);
  }

 private:
  ToyBlock& shared_;
  ToyBlock own_;
  Parameter gain_;
};

struct Sharing : nn::Module<Sharing> {
  explicit Sharing(bool inside_the_first) : shared(12, 20) {
    for (int i = 0; i < 3; ++i) callers.push_back(std::make_unique<Caller>(shared));
    if (inside_the_first) {
      callers.front()->adopt();
    } else {
      child("shared", shared);
    }
    for (int i = 0; i < 3; ++i) child(fmt::format("callers.{}", i), *callers[static_cast<size_t>(i)]);
    scale = param("scale.weight", {1}, constant(1));
  }
  ToyBlock shared;
  std::vector<std::unique_ptr<Caller>> callers;
  Parameter scale;
  nn::Var forward(const nn::Var& in) {
    nn::Var x = with_gradients(in, {scale}, [this] { scale.grad(); });
    for (auto& c : callers) x = (*c)(x);
    return x;
  }
};

Weights train_sharing(Strategy s, bool inside_the_first, int prefetch, bool reshard, bool overlap) {
  Weights all;
  launch(2, [&](RankContext& r) {
    Sharing model(inside_the_first);
    const Routing routes = route(model, {.optimizer = Algorithm::adamw});
    const DeviceMesh mesh = mesh_of(r);
    const FullyShardOptions o{.strategy = s, .reshard_after_forward = reshard};
    fully_shard(model.shared, mesh, o);
    for (auto& c : model.callers) fully_shard(*c, mesh, o);
    fully_shard(model, mesh, o, {.prefetch = prefetch, .overlap_reduce = overlap});
    Optimizer optimizer(model, routes, {});
    Stream& stream = r.device->compute();
    const Tensor x = Tensor::empty(*r.device, {4, 12}, DType::f32, "test");
    int64_t held = 0;
    for (int step = 0; step < 4; ++step) {
      ops::random_normal(stream, x, 48 * (2 * step + r.world->rank()), 1, "x", 0, 1);
      run_pass(model, x, x);
      optimizer.step(0.01);
      stream.synchronize();
      const int64_t now = r.device->allocator().peak_bytes(MemoryClass::gathered) +
                          r.device->allocator().peak_bytes(MemoryClass::gradient);
      EXPECT_TRUE(step == 0 || now == held) << "buffers of their own are made once";
      held = now;
    }
    for (auto& [name, p] : model.named_parameters()) {
      const auto w = ops::to_floats(stream, p.dtensor().full_tensor(stream));
      if (r.world->rank() == 0) all.push_back(w);
    }
  });
  return all;
}

TEST(SharedUnit, OfSeveralWrappedModulesTrainsUnderEveryStrategy) {
  for (const bool inside : {false, true}) {
    const Weights whole = train_sharing(Strategy::no_shard, inside, 1, true, true);
    const Weights cut = train_sharing(Strategy::optim_grads, inside, 1, true, true);
    EXPECT_EQ(train_sharing(Strategy::optim, inside, 1, true, true), whole);
    for (const int prefetch : {0, 1, 3})
      for (const bool reshard : {true, false})
        for (const bool overlap : {true, false})
          EXPECT_EQ(train_sharing(Strategy::optim_grads_params, inside, prefetch, reshard, overlap), cut)
              << "prefetch " << prefetch << " reshard " << reshard << " overlap " << overlap;
    for (size_t i = 0; i < whole.size(); ++i)
      for (size_t k = 0; k < whole[i].size(); ++k) ASSERT_NEAR(whole[i][k], cut[i][k], 1e-4f) << i;
  }
}

// Runs itself once more inside: two uses of one unit are open.
struct Echo : nn::Module<Echo> {
  Echo() { weight = param("weight", {12}, constant(1)); }
  Parameter weight;
  int depth = 0;
  nn::Var forward(const nn::Var& in) {
    nn::Var x = with_gradients(in, {weight}, [this] { EXPECT_TRUE(weight.grad().defined()); });
    if (depth++ < 2) x = (*this)(x);
    --depth;
    return nn::rms_norm(x, weight);
  }
};

TEST(SharedUnit, MayCallItself) {
  std::vector<float> want;
  for (Strategy s : kEveryStrategy) {
    launch(2, [&](RankContext& r) {
      struct Root : nn::Module<Root> {
        Root() { child("echo", echo); }
        Echo echo;
        nn::Var forward(const nn::Var& x) { return echo(x); }
      } model;
      const DeviceMesh mesh = mesh_of(r);
      fully_shard(model.echo, mesh, {.strategy = s});
      fully_shard(model, mesh, {.strategy = s});
      const Tensor x = Tensor::empty(*r.device, {4, 12}, DType::f32, "test");
      Stream& stream = r.device->compute();
      ops::random_normal(stream, x, 48 * r.world->rank(), 1, "x", 0, 1);
      run_pass(model, x, x);
      runtime_of(model).wait_gradients();
      const Parameter& w = model.echo.weight;
      const auto g =
          ops::to_floats(stream, DTensor::from_layout(mesh, w.group().sharded_over(),
                                                      std::make_shared<ShardLayout>(w.group().layout()),
                                                      w.index_in_group(), w.grad_shard())
                                     .full_tensor(stream));
      if (r.world->rank() != 0) return;
      if (want.empty()) want = g;
      EXPECT_EQ(g, want) << name_of(s) << ": all three uses are added before the ranks are";
    });
  }
}

}  // namespace
}  // namespace sherd::test
