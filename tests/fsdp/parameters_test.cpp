// The odd kinds of parameters and uses: frozen, tied, unused, ignored, called twice; and what misuse says.

#include <cmath>

#include <sherd/fsdp/weights_change.h>

#include "support/message_of.h"
#include "support/rig.h"

namespace sherd::test {
namespace {

TEST(Parameters, SameSeedSameModelOnEveryMesh) {
  std::vector<std::vector<float>> want;
  for (const int ranks : {1, 2, 5}) {
    ToyRun run{.ranks = ranks, .steps = 0};
    run.root.seed = 42;
    const auto got = run_toy(run).weights;
    if (want.empty()) want = got;
    EXPECT_EQ(got, want) << ranks;
  }
  ToyRun other{.steps = 0};
  other.root.seed = 43;
  EXPECT_NE(run_toy(other).weights, want);
}

TEST(Parameters, FrozenParametersStayAndTheRestTrains) {
  auto freeze = [](ToyModel& m) {
    m.table_.freeze();
    m.blocks_[0]->up_.freeze();
    for (Parameter* p : {&m.blocks_[1]->up_, &m.blocks_[1]->down_, &m.blocks_[1]->norm_}) p->freeze();
  };
  ToyRun run{.steps = 0, .before = freeze};
  const auto start = run_toy(run).weights;
  run.steps = 3;
  const ToyResult one = run_toy(run);
  for (Strategy s : {Strategy::no_shard, Strategy::optim_grads_params}) {
    run.ranks = 3;
    run.options.strategy = s;
    const ToyResult three = run_toy(run);
    for (size_t i = 0; i < start.size(); ++i)
      EXPECT_EQ(three.weights[i] == start[i], one.weights[i] == start[i]) << i;
    EXPECT_EQ(three.weights[0], start[0]);
    EXPECT_NE(three.weights.back(), start.back());
  }
}

TEST(Parameters, AUnitCalledTwiceSumsItsGradients) {
  std::vector<std::vector<float>> want;
  for (Strategy strategy : kEveryStrategy) {
    std::vector<std::vector<float>> got;
    launch(2, [&](RankContext& r) {
      ToyModel model(12, 20, 3);
      const DeviceMesh mesh = mesh_of(r);
      const FullyShardOptions options{.strategy = strategy};
      for (auto& b : model.blocks_) fully_shard(*b, mesh, options);
      fully_shard(model, mesh, options);
      model.blocks_.push_back(model.blocks_.front());  // runs again after the last
      const Tensor in = Tensor::empty(*r.device, {1, 4}, DType::i32, "test");
      Stream& s = r.device->compute();
      ops::fill(s, in, 2 + r.world->rank());
      model.targets = in;
      for (int i = 0; i < 2; ++i) {
        run_pass(model, in);
        runtime_of(model).wait_gradients();
        if (i == 0) WeightsChange(runtime_of(model)).end();
      }
      for (auto& [name, p] : model.named_parameters()) {
        // Whole gradients, through the parameter's own layout.
        const Tensor mine = p.grad_shard();
        const auto g = p.group().layout();
        const Tensor whole = DTensor::from_layout(mesh, p.group().sharded_over(),
                                                  std::make_shared<ShardLayout>(g), p.index_in_group(), mine)
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
        ASSERT_NEAR(got[i][k], want[i][k], 1e-5f * (1 + std::abs(want[i][k])))
            << name_of(strategy) << " " << i;
  }
}

// The head uses the embedding's matrix.
class Tied : public nn::Module<Tied> {
 public:
  struct Table : ModuleBase {
    explicit Table(int64_t width) { weight = param("weight", {ToyModel::kVocab, width}, normal(0.3f)); }
    Parameter weight;
  };
  struct Head : nn::Module<Head> {
    explicit Head(const Parameter& p) { weight = tie("weight", p); }
    nn::Var forward(const nn::Var& x) { return nn::linear(x, weight); }
    Parameter weight;
  };
  explicit Tied(int64_t width) : table(width), head(table.weight), block(width, 17) {
    child("embed", table);
    child("block", block);
    child("head", head);
  }
  Table table;
  Head head;
  ToyBlock block;
  nn::Var forward(const nn::Var& tokens) {
    const nn::Var x = block(nn::embedding(tokens, table.weight));
    return nn::cross_entropy(head(x), targets, 1).objective;
  }
  Tensor targets;
};

TEST(Parameters, TiedWeightsBelongToTheCommonAncestorAndGetBothGradients) {
  std::vector<float> want;
  for (const int ranks : {1, 3}) {
    launch(ranks, [&](RankContext& r) {
      Tied model(9);
      const DeviceMesh mesh = mesh_of(r);
      fully_shard(model.block, mesh);
      fully_shard(model.head, mesh);  // its only parameter is shared with embed: left to the root
      fully_shard(model, mesh);
      EXPECT_EQ(model.named_parameters().size(), 4u);
      EXPECT_EQ(model.tied_names(),
                (std::vector<std::pair<std::string, std::string>>{{"head.weight", "embed.weight"}}));
      EXPECT_EQ(model.head.weight.name(), "embed.weight");
      EXPECT_EQ(model.head.weight.group().unit(), "root");
      Stream& s = r.device->compute();
      const Tensor in = Tensor::empty(*r.device, {1, 5}, DType::i32, "test");
      ops::fill(s, in, 6);
      model.targets = in;
      run_pass(model, in);
      runtime_of(model).wait_gradients();
      const auto p = model.table.weight;
      const auto g = ops::to_floats(s, DTensor::from_layout(mesh, p.group().sharded_over(),
                                                            std::make_shared<ShardLayout>(p.group().layout()),
                                                            p.index_in_group(), p.grad_shard())
                                           .full_tensor(s));
      if (r.world->rank() != 0) return;
      if (want.empty()) want = g;
      for (size_t i = 0; i < g.size(); ++i) EXPECT_NEAR(g[i], want[i], 1e-5f);
    });
  }
}

TEST(Parameters, MissingGradientsAreAnErrorThatNamesAllOfThem) {
  try {
    launch(2, [](RankContext& r) {
      Rig rig(r, {});
      // No block is called, nor contributes.
      auto blocks = std::move(rig.model.blocks_);
      rig.model.blocks_.clear();
      try {
        rig.forward();
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

TEST(Parameters, UnusedParametersMayBeAllowed) {
  for (Strategy strategy : {Strategy::no_shard, Strategy::optim_grads, Strategy::optim_grads_params}) {
    launch(2, [strategy](RankContext& r) {
      Rig rig(r, {.strategy = strategy}, {.allow_unused = true});
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

TEST(Parameters, IgnoredParametersAreWholeAndNeverReduced) {
  launch(2, [](RankContext& r) {
    Rig rig(r, {}, {.ignored = {"head.weight"}});
    EXPECT_EQ(rig.model.head_.shard().numel(), rig.model.head_.numel());
    EXPECT_LT(rig.model.table_.shard().numel(), rig.model.table_.numel());
    ops::fill(r.device->compute(), rig.tokens, 1 + r.world->rank());
    rig.forward();
    rig.backward();
    const auto stats = clip_grad_norm(rig.model, 1e-3);
    rig.sync();
    const Tensor norms = Tensor::empty(*r.device, {2}, DType::f32, "test");
    r.world->all_gather(r.device->compute(), norms, [&] {
      const Tensor mine = norms.flat(r.world->rank(), r.world->rank() + 1);
      ops::copy_from_host(r.device->compute(), mine, &stats->norm, sizeof(float));
      return mine;
    }());
    const auto both_norms = ops::to_floats(r.device->compute(), norms);
    EXPECT_EQ(both_norms[0], both_norms[1]) << "a global norm is the same on every rank";
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

TEST(Parameters, EvaluationBetweenStepsChangesNothing) {
  ToyRun run{.ranks = 2};
  const ToyResult want = run_toy(run);
  run.after_step = [](ToyModel& m) {
    m.set_training(false);
    Taped().forward(m, m.targets);
    m.set_training(true);
  };
  const ToyResult got = run_toy(run);
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.weights, want.weights);
}

TEST(Parameters, MisuseIsExplained) {
  launch(1, [](RankContext& r) {
    ToyModel model(8, 8, 1);
    const DeviceMesh mesh(r.world, {{"data", 1}});
    EXPECT_THROW(runtime_of(model), InvalidArgument);
    EXPECT_THROW(model.head_.data(), InvalidArgument);
    EXPECT_THAT(
        message_of<InvalidArgument>([&] {
          fully_shard(model, mesh, {.gradient_ranks = -2}, {.prefetch = -1, .ignored = {"nobody.weight"}});
        }),
        ::testing::AllOf(HasSubstr("'shard'"), HasSubstr("prefetch -1"), HasSubstr("gradient ranks -2"),
                         HasSubstr("nobody.weight")));
  });
  launch(1, [](RankContext& r) {
    Rig rig(r, {});
    EXPECT_THROW(rig.optimizer->step(0.1), InvalidArgument);
    EXPECT_THROW(clip_grad_norm(rig.model, 1), InvalidArgument);
    EXPECT_THROW(rig.model.head_.freeze(), InvalidArgument);
    EXPECT_THROW(rig.model.unit()->pre_backward(), InvalidArgument);
    EXPECT_THROW(fully_shard(rig.model, runtime_of(rig.model).mesh()), InvalidArgument);
  });
}

TEST(Parameters, DifferentModelsOnDifferentRanksAreRefused) {
  EXPECT_THROW(launch(2,
                      [](RankContext& r) {
                        ToyModel model(8, 8 + r.world->rank(), 1);
                        fully_shard(model, mesh_of(r));
                      }),
               ShapeMismatch);
}

TEST(Parameters, AMemoryLimitStopsZero0AndLetsZero3Train) {
  auto train = [](Strategy s) {
    launch(4, {.device = {.memory_limit = 2'600'000}}, [s](RankContext& r) {
      Rig rig(r, {.strategy = s}, 1, nullptr, 96, 384);
      rig.step();
      rig.sync();
    });
  };
  EXPECT_NO_THROW(train(Strategy::optim_grads_params));
  EXPECT_THAT(message_of<OutOfMemory>([&] { train(Strategy::no_shard); }),
              ::testing::AllOf(HasSubstr("memory limit of 2600000 bytes"), HasSubstr("gradients")));
}

}  // namespace
}  // namespace sherd::test
