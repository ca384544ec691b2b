// What the runtime does, counted: collectives, event order, copies, bytes, and the odd kinds of parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "support/toy_model.h"

namespace sherd::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kBlocks = 3;

CommCounts minus(CommCounts a, const CommCounts& b) {
  for (auto& [k, v] : b) {
    a[k].calls -= v.calls;
    a[k].bytes -= v.bytes;
  }
  return a;
}

// Runs `body(model, optimizer, batch)` on `ranks` ranks with a wrapped toy model.
struct Rig {
  Rig(RankContext& r, const FullyShardOptions& o, int replicas = 1,
      const std::function<void(ToyModel&)>& before = nullptr, int64_t width = 16, int64_t hidden = 32)
      : rank(r), model(width, hidden, kBlocks) {
    if (before) before(model);
    routes = route(model, {.optimizer = Algorithm::adamw});
    const int shard = r.world->size() / replicas;
    const DeviceMesh mesh = replicas == 1 ? DeviceMesh(r.world, {{"shard", shard}})
                                          : DeviceMesh(r.world, {{"replicate", replicas}, {"shard", shard}});
    for (auto& b : model.blocks_) fully_shard(*b, mesh, o);
    fully_shard(model, mesh, o);
    optimizer.emplace(model, routes, OptimizerOptions{});
    tokens = Tensor::empty(*r.device, {1, 6}, DType::i32, "test");
    model.targets = Tensor::empty(*r.device, {1, 6}, DType::i32, "test");
    ops::fill(r.device->compute(), tokens, 3);
    ops::fill(r.device->compute(), model.targets, 4);
  }
  void forward() { losses = model(tokens); }
  void backward() { model.run_backward({}); }
  void step() {
    forward();
    backward();
    clip_grad_norm(model, 1.0);
    optimizer->step(0.01);
  }
  CommCounts counted(const std::function<void()>& f) {
    sync();
    const CommCounts before = rank.world->counts();
    f();
    sync();
    return minus(rank.world->counts(), before);
  }
  void sync() {
    ShardRuntime& rt = runtime_of(model);
    rt.wait_gradients();
    for (auto& u : rt.units()) u->wait();
    rank.device->compute().synchronize();
  }
  RankContext& rank;
  ToyModel model;
  Routing routes;
  std::optional<Optimizer> optimizer;
  Tensor tokens, losses;
};

TEST(Runtime, Zero3IssuesExactlyTheCollectivesOfFsdp2) {
  launch(4, [](RankContext& r) {
    Rig rig(r, {});
    for (int step = 0; step < 3; ++step) {
      auto fwd = rig.counted([&] { rig.forward(); });
      EXPECT_EQ(fwd["all_gather"].calls, kBlocks + 1) << step;
      auto bwd = rig.counted([&] { rig.backward(); });
      EXPECT_EQ(bwd["all_gather"].calls, kBlocks) << step;
      EXPECT_EQ(bwd["reduce_scatter"].calls, kBlocks + 1) << step;
      auto clip = rig.counted([&] { clip_grad_norm(rig.model, 1.0); });
      EXPECT_EQ(clip["all_reduce"].calls, 1) << step;
      auto opt = rig.counted([&] { rig.optimizer->step(0.01); });
      for (auto& [name, c] : opt) EXPECT_EQ(c.calls, 0) << name;
      for (auto* counts : {&fwd, &bwd, &clip})
        for (auto& [name, c] : *counts)
          if (name != "all_gather" && name != "reduce_scatter" && name != "all_reduce") {
            EXPECT_EQ(c.calls, 0) << name;
          }
      EXPECT_EQ(bwd["all_reduce"].calls + fwd["all_reduce"].calls, 0);
    }
  });
}

TEST(Runtime, HsdpClipsWithOneAllReducePerShardingDimension) {
  launch(4, [](RankContext& r) {
    for (Outer o : {Outer::no_shard, Outer::optim}) {
      FullyShardOptions options;
      options.outer = o;
      Rig rig(r, options, 2);
      rig.forward();
      auto bwd = rig.counted([&] { rig.backward(); });
      EXPECT_EQ(bwd["reduce_scatter"].calls, (kBlocks + 1) * (o == Outer::optim ? 2 : 1));
      EXPECT_EQ(bwd["all_reduce"].calls, o == Outer::optim ? 0 : kBlocks + 1);
      auto clip = rig.counted([&] { clip_grad_norm(rig.model, 1.0); });
      EXPECT_EQ(clip["all_reduce"].calls, o == Outer::optim ? 2 : 1);
      rig.optimizer->step(0.01);
      rig.sync();
    }
  });
}

TEST(Runtime, Zero0ClipsWithoutCommunication) {
  launch(2, [](RankContext& r) {
    FullyShardOptions options;
    options.strategy = Strategy::no_shard;
    Rig rig(r, options);
    rig.forward();
    auto bwd = rig.counted([&] { rig.backward(); });
    EXPECT_EQ(bwd["all_reduce"].calls, kBlocks + 1);
    auto clip = rig.counted([&] { clip_grad_norm(rig.model, 1.0); });
    EXPECT_EQ(clip["all_reduce"].calls, 0);
    rig.optimizer->step(0.01);
    rig.sync();
  });
}

TEST(Runtime, OneRankCommunicatesNothing) {
  launch(1, [](RankContext& r) {
    Rig rig(r, {});
    auto all = rig.counted([&] { rig.step(); });
    for (auto& [name, c] : all) EXPECT_EQ(c.bytes, 0) << name;
  });
}

TEST(Runtime, EventOrderIsThatOfFsdp2) {
  launch(2, [](RankContext& r) {
    Rig rig(r, {});
    ShardRuntime& rt = runtime_of(rig.model);
    rt.enable_trace(true);
    for (int step = 0; step < 2; ++step) {
      rt.clear_trace();
      rig.forward();
      if (step == 0) {  // nothing recorded yet: gather on demand
        EXPECT_THAT(rt.trace(),
                    ElementsAre("unshard root", "forward root", "unshard blocks.0", "forward blocks.0",
                                "unshard blocks.1", "forward blocks.1", "unshard blocks.2", "forward blocks.2"));
      } else {  // one ahead
        EXPECT_THAT(rt.trace(),
                    ElementsAre("unshard root", "unshard blocks.0", "forward root", "unshard blocks.1",
                                "forward blocks.0", "unshard blocks.2", "forward blocks.1", "forward blocks.2"));
      }
      rt.clear_trace();
      rig.backward();
      EXPECT_THAT(rt.trace(), ElementsAre("unshard blocks.2", "backward root", "unshard blocks.1", "backward blocks.2",
                                          "post blocks.2", "unshard blocks.0", "backward blocks.1", "post blocks.1",
                                          "backward blocks.0", "post blocks.0", "post root"));
      clip_grad_norm(rig.model, 0);
      rig.optimizer->step(0.01);
    }
    rig.sync();
  });
}

TEST(Runtime, RaggedCopiesNothingAroundCollectives) {
  for (Strategy s : {Strategy::no_shard, Strategy::optim, Strategy::optim_grads, Strategy::optim_grads_params}) {
    launch(4, [s](RankContext& r) {
      FullyShardOptions options;
      options.strategy = s;
      Rig rig(r, options);
      rig.step();
      rig.sync();
      const int64_t before = r.device->copied_bytes();
      rig.step();
      rig.sync();
      EXPECT_EQ(r.device->copied_bytes(), before) << name_of(s);
    });
  }
}

TEST(Runtime, EvenRowsCopiesOnceInAndOnceOut) {
  launch(4, [](RankContext& r) {
    FullyShardOptions options;
    options.layout = LayoutPolicy::even_rows;
    Rig rig(r, options);
    rig.step();
    rig.sync();
    int64_t elements = 0, root = 0;
    for (auto& [name, p] : rig.model.named_parameters()) {
      elements += p.numel();
      if (!name.starts_with("blocks")) root += p.numel();
    }
    const int64_t before = r.device->copied_bytes();
    rig.step();
    rig.sync();
    // Gathered twice (the root once), reduced once.
    EXPECT_EQ(r.device->copied_bytes() - before, 4 * (3 * elements - root));
  });
}

TEST(Runtime, PeakBytesFollowTheFormula) {
  for (const int prefetch : {0, 1, 2}) {
    for (const bool overlap : {true, false}) {
      launch(4, [=](RankContext& r) {
        FullyShardOptions options;
        options.prefetch = prefetch;
        options.overlap_reduce = overlap;
        Rig rig(r, options, 1, nullptr, 96, 384);
        rig.step();
        rig.step();
        rig.sync();
        int64_t total = 0, root = 0;
        for (auto& [name, p] : rig.model.named_parameters()) {
          total += p.numel();
          if (!name.starts_with("blocks")) root += p.numel();
        }
        const int64_t unit = (total - root) / kBlocks;
        // Shards of parameters and gradients, the root and its gradients, prefetch + 1 units, 2 (1) unit gradients.
        const int64_t want = 4 * (2 * total / 4 + 2 * root + (prefetch + 1) * unit + (overlap ? 2 : 1) * unit);
        int64_t got = 0;
        for (auto& line : r.device->allocator().table())
          if (line.name == "parameters" || line.name == "gradients" || line.name == "unsharded parameters" ||
              line.name == "unsharded gradients" || line.name == "master weights")
            got += line.peak_bytes;
        EXPECT_NEAR(static_cast<double>(got), static_cast<double>(want), 0.05 * static_cast<double>(want));
      });
    }
  }
}

TEST(Runtime, PublicVerbsGiveWholeParametersOutsideForward) {
  launch(3, [](RankContext& r) {
    Rig rig(r, {});
    auto unit = rig.model.blocks_[1]->unit();
    EXPECT_THROW(rig.model.blocks_[1]->up_.data(), InvalidArgument);
    unit->unshard();
    unit->wait();
    Stream& s = r.device->compute();
    const auto direct = ops::to_floats(s, rig.model.blocks_[1]->up_.data());
    const auto gathered = ops::to_floats(s, rig.model.blocks_[1]->up_.dtensor().full_tensor(s));
    EXPECT_EQ(direct, gathered);
    unit->reshard();
    EXPECT_THROW(rig.model.blocks_[1]->up_.data(), InvalidArgument);
    EXPECT_THROW(rig.model.blocks_[1]->up_.grad(), InvalidArgument);
    rig.sync();
  });
}

TEST(Runtime, SameSeedSameModelOnEveryMesh) {
  std::vector<std::vector<float>> want;
  for (const int ranks : {1, 2, 5}) {
    ToyRun run;
    run.ranks = ranks;
    run.steps = 0;
    run.options.seed = 42;
    const auto got = run_toy(run).weights;
    if (want.empty()) want = got;
    EXPECT_EQ(got, want) << ranks;
  }
  ToyRun other;
  other.steps = 0;
  other.options.seed = 43;
  EXPECT_NE(run_toy(other).weights, want);
}

TEST(Runtime, FrozenParametersStayAndTheRestTrains) {
  auto freeze = [](ToyModel& m) {
    m.table_.freeze();
    m.blocks_[0]->up_.freeze();
    for (Parameter* p : {&m.blocks_[1]->up_, &m.blocks_[1]->down_, &m.blocks_[1]->norm_}) p->freeze();
  };
  ToyRun run;
  run.before = freeze;
  run.steps = 0;
  const auto start = run_toy(run).weights;
  run.steps = 3;
  const ToyResult one = run_toy(run);
  for (Strategy s : {Strategy::no_shard, Strategy::optim_grads_params}) {
    run.ranks = 3;
    run.options.strategy = s;
    const ToyResult three = run_toy(run);
    for (size_t i = 0; i < start.size(); ++i) EXPECT_EQ(three.weights[i] == start[i], one.weights[i] == start[i]) << i;
    EXPECT_EQ(three.weights[0], start[0]);
    EXPECT_NE(three.weights.back(), start.back());
  }
}

TEST(Runtime, AUnitCalledTwiceSumsItsGradients) {
  std::vector<std::vector<float>> want;
  for (Strategy strategy : {Strategy::no_shard, Strategy::optim, Strategy::optim_grads, Strategy::optim_grads_params}) {
    std::vector<std::vector<float>> got;
    launch(2, [&](RankContext& r) {
      ToyModel model(12, 20, 3);
      const DeviceMesh mesh(r.world, {{"shard", 2}});
      FullyShardOptions options;
      options.strategy = strategy;
      for (auto& b : model.blocks_) fully_shard(*b, mesh, options);
      fully_shard(model, mesh, options);
      model.blocks_.push_back(model.blocks_.front());  // runs again after the last
      const Tensor in = Tensor::empty(*r.device, {1, 4}, DType::i32, "test");
      Stream& s = r.device->compute();
      ops::fill(s, in, 2 + r.world->rank());
      model.targets = in;
      for (int i = 0; i < 2; ++i) {
        model(in);
        model.run_backward({});
        runtime_of(model).wait_gradients();
        if (i == 0) runtime_of(model).weights_changed();
      }
      for (auto& [name, p] : model.named_parameters()) {
        // Whole gradients, through the parameter's own layout.
        const Tensor mine = p.grad_shard();
        const auto g = p.group().layout();
        const Tensor whole =
            DTensor::from_layout(mesh, p.group().sharded_over(), std::make_shared<ShardLayout>(g), p.index_in_group(), mine)
                .full_tensor(s);
        const auto values = ops::to_floats(s, whole);
        if (r.world->rank() == 0) got.push_back(values);
      }
    });
    if (want.empty()) want = got;
    ASSERT_EQ(got.size(), want.size());
    // A block's two contributions are added before or after the ranks are: to rounding.
    for (size_t i = 0; i < got.size(); ++i)
      for (size_t k = 0; k < got[i].size(); ++k)
        ASSERT_NEAR(got[i][k], want[i][k], 1e-5f * (1 + std::abs(want[i][k]))) << name_of(strategy) << " " << i;
  }
}

// The head uses the embedding's matrix.
class Tied : public Module {
 public:
  struct Table : Module {
    explicit Table(int64_t width) { weight = param("weight", {ToyModel::kVocab, width}, normal(0.3f)); }
    Parameter weight;

   protected:
    Tensor forward(const Tensor& x) override { return x; }
    Tensor backward(const Tensor& dy) override { return dy; }
  };
  struct Head : Module {
    explicit Head(const Parameter& p) { weight = tie("weight", p); }
    Parameter weight;
    Tensor x;

   protected:
    Tensor forward(const Tensor& in) override {
      x = in;
      Tensor y = Tensor::empty(in.device(), {in.size(0), ToyModel::kVocab}, in.dtype(), "test");
      ops::gemm(in.device().compute(), y, in, false, weight.data(), true);
      return y;
    }
    Tensor backward(const Tensor& dy) override {
      Stream& s = dy.device().compute();
      ops::gemm(s, weight.grad(), dy, true, x, false, 1, 1);
      Tensor dx = Tensor::empty(dy.device(), x.shape(), x.dtype(), "test");
      ops::gemm(s, dx, dy, false, weight.data(), false);
      return dx;
    }
  };
  explicit Tied(int64_t width) : table(width), head(table.weight), block(width, 17) {
    child("embed", table);
    child("block", block);
    child("head", head);
  }
  Table table;
  Head head;
  ToyBlock block;
  Tensor targets, logits, tokens;

 protected:
  Tensor forward(const Tensor& t) override {
    tokens = t;
    Tensor x = Tensor::empty(t.device(), {t.numel(), table.weight.shape()[1]}, DType::f32, "test");
    ops::embedding_forward(t.device().compute(), x, t, table.weight.data(), {});
    logits = head(block(x));
    Tensor losses = Tensor::empty(t.device(), {t.numel()}, DType::f32, "test");
    ops::cross_entropy_forward(t.device().compute(), losses, logits, targets);
    return losses;
  }
  Tensor backward(const Tensor&) override {
    Stream& s = logits.device().compute();
    ops::cross_entropy_backward(s, logits, logits, targets, 1.0f);
    const Tensor dx = block.run_backward(head.run_backward(logits));
    ops::embedding_backward(s, table.weight.grad(), {}, dx, tokens);
    return {};
  }
};

TEST(Runtime, TiedWeightsBelongToTheCommonAncestorAndGetBothGradients) {
  std::vector<float> want;
  for (const int ranks : {1, 3}) {
    launch(ranks, [&](RankContext& r) {
      Tied model(9);
      const DeviceMesh mesh(r.world, {{"shard", ranks}});
      fully_shard(model.block, mesh);
      fully_shard(model.head, mesh);  // its only parameter is shared with embed: left to the root
      fully_shard(model, mesh);
      EXPECT_EQ(model.named_parameters().size(), 4u);
      EXPECT_EQ(model.head.weight.name(), "embed.weight");
      EXPECT_EQ(model.head.weight.group().unit(), "root");
      Stream& s = r.device->compute();
      const Tensor in = Tensor::empty(*r.device, {1, 5}, DType::i32, "test");
      ops::fill(s, in, 6);
      model.targets = in;
      model(in);
      model.run_backward({});
      runtime_of(model).wait_gradients();
      const auto p = model.table.weight;
      const auto g = ops::to_floats(
          s, DTensor::from_layout(mesh, p.group().sharded_over(), std::make_shared<ShardLayout>(p.group().layout()),
                                  p.index_in_group(), p.grad_shard())
                 .full_tensor(s));
      if (r.world->rank() != 0) return;
      if (want.empty()) want = g;
      for (size_t i = 0; i < g.size(); ++i) EXPECT_NEAR(g[i], want[i], 1e-5f);
    });
  }
}

TEST(Runtime, MissingGradientsAreAnErrorThatNamesAllOfThem) {
  try {
    launch(2, [](RankContext& r) {
      Rig rig(r, {});
      rig.forward();
      // Only the root's backward runs: no block contributes.
      auto blocks = std::move(rig.model.blocks_);
      rig.model.blocks_.clear();
      try {
        rig.backward();
      } catch (...) {
        rig.model.blocks_ = std::move(blocks);
        throw;
      }
      rig.model.blocks_ = std::move(blocks);
    });
    FAIL() << "no error";
  } catch (const InvalidArgument& e) {
    EXPECT_THAT(e.what(), HasSubstr("blocks.0.up.weight"));
    EXPECT_THAT(e.what(), HasSubstr("blocks.2.norm.weight"));
    EXPECT_THAT(e.what(), ::testing::Not(HasSubstr("head.weight")));
  }
}

TEST(Runtime, UnusedParametersMayBeAllowed) {
  for (Strategy strategy : {Strategy::no_shard, Strategy::optim_grads, Strategy::optim_grads_params}) {
    launch(2, [strategy](RankContext& r) {
      FullyShardOptions options;
      options.strategy = strategy;
      options.allow_unused = true;
      Rig rig(r, options);
      auto last = std::move(rig.model.blocks_.back());
      rig.model.blocks_.pop_back();
      const auto before = ops::to_floats(r.device->compute(), last->up_.shard());
      for (int i = 0; i < 3; ++i) rig.step();
      rig.sync();
      EXPECT_EQ(ops::to_floats(r.device->compute(), last->up_.shard()), before);  // zero gradient, no decay
      rig.model.blocks_.push_back(std::move(last));
    });
  }
}

TEST(Runtime, IgnoredParametersAreWholeAndNeverReduced) {
  launch(2, [](RankContext& r) {
    FullyShardOptions options;
    options.ignored = {"head.weight"};
    Rig rig(r, options);
    EXPECT_EQ(rig.model.head_.shard().numel(), rig.model.head_.numel());
    EXPECT_LT(rig.model.table_.shard().numel(), rig.model.table_.numel());
    ops::fill(r.device->compute(), rig.tokens, 1 + r.world->rank());
    rig.forward();
    rig.backward();
    rig.sync();
    // Each rank keeps its own gradient: they differ because the tokens do.
    const auto mine = ops::to_floats(r.device->compute(), rig.model.head_.grad_shard());
    const Tensor sum = rig.model.head_.grad_shard();
    r.world->all_reduce(r.device->compute(), sum);
    const auto both = ops::to_floats(r.device->compute(), sum);
    bool differs = false;
    for (size_t i = 0; i < mine.size(); ++i) differs |= both[i] != 2 * mine[i];
    EXPECT_TRUE(differs);
  });
}

TEST(Runtime, EvaluationBetweenStepsChangesNothing) {
  ToyRun run;
  run.ranks = 2;
  const ToyResult want = run_toy(run);
  run.after_step = [](ToyModel& m) {
    m.set_training(false);
    m(m.targets);
    m.set_training(true);
  };
  const ToyResult got = run_toy(run);
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.weights, want.weights);
}

TEST(Runtime, MisuseIsExplained) {
  launch(1, [](RankContext& r) {
    ToyModel model(8, 8, 1);
    const DeviceMesh mesh(r.world, {{"data", 1}});
    EXPECT_THROW(runtime_of(model), InvalidArgument);
    EXPECT_THROW(model.head_.data(), InvalidArgument);
    FullyShardOptions o;
    o.prefetch = -1;
    o.ignored = {"nobody.weight"};
    try {
      fully_shard(model, mesh, o);
      FAIL();
    } catch (const InvalidArgument& e) {
      EXPECT_THAT(e.what(), HasSubstr("'shard'"));
      EXPECT_THAT(e.what(), HasSubstr("prefetch -1"));
      EXPECT_THAT(e.what(), HasSubstr("nobody.weight"));
    }
  });
  launch(1, [](RankContext& r) {
    Rig rig(r, {});
    EXPECT_THROW(rig.optimizer->step(0.1), InvalidArgument);
    EXPECT_THROW(clip_grad_norm(rig.model, 1), InvalidArgument);
    EXPECT_THROW(rig.model.head_.freeze(), InvalidArgument);
    EXPECT_THROW(rig.model.run_backward({}), InvalidArgument);
    EXPECT_THROW(fully_shard(rig.model, runtime_of(rig.model).mesh()), InvalidArgument);
  });
}

TEST(Runtime, DifferentModelsOnDifferentRanksAreRefused) {
  EXPECT_THROW(launch(2,
                      [](RankContext& r) {
                        ToyModel model(8, 8 + r.world->rank(), 1);
                        fully_shard(model, DeviceMesh(r.world, {{"shard", 2}}));
                      }),
               ShapeMismatch);
}

TEST(Runtime, AMemoryLimitStopsZero0AndLetsZero3Train) {
  auto train = [](Strategy s) {
    launch(4, {.memory_limit = 2'600'000}, [s](RankContext& r) {
      FullyShardOptions options;
      options.strategy = s;
      Rig rig(r, options, 1, nullptr, 96, 384);
      rig.step();
      rig.sync();
    });
  };
  EXPECT_NO_THROW(train(Strategy::optim_grads_params));
  try {
    train(Strategy::no_shard);
    FAIL();
  } catch (const OutOfMemory& e) {
    EXPECT_THAT(e.what(), HasSubstr("memory limit of 2600000 bytes"));
    EXPECT_THAT(e.what(), HasSubstr("gradients"));
  }
}

}  // namespace
}  // namespace sherd::test
