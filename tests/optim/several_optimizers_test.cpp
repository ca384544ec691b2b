// Several optimizers on one root: each steps, skips and drops gradients by itself.

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>

#include "optim/whole_tensors.h"
#include "support/message_of.h"
#include "support/rig.h"

namespace sherd::test {
namespace {

constexpr double kMakerRate = 0.125, kJudgeRate = 0.25;

/// Parameters whose gradients the test makes: element i of parameter p has scale * sin(0.7 i + p + pass).
struct Leaf : MadeGradients {
  Parameter add(const std::string& name, Shape shape) { return param(name, std::move(shape), normal(1)); }
  static std::vector<float> gradient(const std::string& name, int64_t elements, int pass, float scale) {
    std::vector<float> g(static_cast<size_t>(elements));
    for (size_t i = 0; i < g.size(); ++i)
      g[i] = scale * static_cast<float>(
                         std::sin(0.7 * static_cast<double>(i) + static_cast<double>(name.size()) + pass));
    return g;
  }
  std::function<bool(const std::string&)> touches = [](const std::string&) { return true; };
  int pass = 0;
  float scale = 1;

  void put_gradients() override {
    for (auto& p : own_parameters()) {
      if (!touches(p.name())) continue;
      const Tensor g = p.grad();
      std::vector<float> sum = ops::to_floats(g.device().compute(), g);
      const std::vector<float> more = gradient(p.name(), g.numel(), pass, scale);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
      ops::copy_from_host(g.device().compute(), g, sum.data(), g.nbytes());
      g.device().compute().synchronize();
    }
  }
};

/// The root holds parameters of both, in one group; the maker's and the judge's units hold their own.
struct Pair : Leaf {
  Leaf maker, judge;
  Pair() {
    maker.add("weight", {5, 3});
    judge.add("weight", {7, 2});
    judge.add("bias", {3});
    add("maker_gain", {9});
    add("judge_gain", {4, 3});
    child("maker", maker);
    child("judge", judge);
    touches = [this](const std::string& name) { return name.starts_with("judge") ? uses_judge : uses_maker; };
  }
  bool uses_maker = true, uses_judge = true;

  void forward_pass(Device& device) { taped.forward(*this, Tensor::empty(device, {1}, DType::f32, "test")); }
  /// One backward whose gradients follow from `pass` alone.
  void train(Device& device, int number, bool last = true, float factor = 1) {
    for (Leaf* l : {static_cast<Leaf*>(this), &maker, &judge}) l->pass = number, l->scale = factor;
    runtime_of(*this).set_last_microbatch(last);
    forward_pass(device);
    taped.backward();
    runtime_of(*this).set_last_microbatch(true);
  }
  nn::Var forward(const nn::Var& in) override {
    nn::Var x = Leaf::forward(in);
    if (uses_maker) x = maker(x);
    if (uses_judge) x = judge(x);
    return x;
  }
  Taped taped;
};

/// The same updates of whole parameters on one rank, by the kernel alone.
class Plain {
 public:
  Plain(Device& device, Pair& model) : s_(device.compute()) {
    for (auto& [name, p] : model.named_parameters()) {
      One& one = all_.try_emplace(name, One{}).first->second;
      const std::vector<float> w = ops::to_floats(s_, p.dtensor().full_tensor(s_));
      for (Tensor* t : {&one.w, &one.m, &one.v, &one.g}) {
        *t = Tensor::empty(device, {static_cast<int64_t>(w.size())}, DType::f32, "test");
        ops::fill(s_, *t, 0);
      }
      ops::copy_from_host(s_, one.w, w.data(), one.w.nbytes());
      s_.synchronize();
    }
  }
  void update(const std::string& whose, const std::vector<int>& passes, double lr) {
    for (auto& [name, one] : all_) {
      if (!name.starts_with(whose)) continue;
      std::vector<float> g(static_cast<size_t>(one.w.numel()), 0.0f);
      for (const int pass : passes) {
        const auto more = Leaf::gradient(name, one.w.numel(), pass, 1);
        for (size_t i = 0; i < g.size(); ++i) g[i] += more[i];
      }
      ops::copy_from_host(s_, one.g, g.data(), one.g.nbytes());
      ops::adamw(
          s_, one.w, one.m, one.v, one.g,
          {.lr = lr, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0, .step = ++one.steps});
      s_.synchronize();
    }
  }
  /// Gradients averaged over three ranks round; a step moves a weight by about its rate, in proportion to
  /// m / sqrt(v), which doubles that error at most.
  void expect_same(Pair& model, int ranks, double lr_sum) {
    for (auto& [name, p] : model.named_parameters()) {
      const std::vector<float> got = ops::to_floats(s_, p.dtensor().full_tensor(s_));
      const std::vector<float> want = ops::to_floats(s_, all_.at(name).w);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) {
        if (ranks == 3) {
          EXPECT_NEAR(got[i], want[i], 8e-7 * lr_sum + 3e-7 * std::abs(want[i])) << name << " " << i;
        } else {
          EXPECT_EQ(got[i], want[i]) << name << " " << i;
        }
      }
    }
  }

 private:
  struct One {
    Tensor w, m, v, g;
    int64_t steps = 0;
  };
  Stream& s_;
  std::map<std::string, One> all_;
};

std::vector<float> weights(ModuleBase& model, Stream& s) {
  std::vector<float> all;
  for (auto& [name, p] : model.named_parameters()) {
    const std::vector<float> values = ops::to_floats(s, p.shard());
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

/// A wrapped pair with its two optimizers.
struct Both {
  Both(RankContext& r, FullyShardOptions o, int replicas = 1) : device(*r.device) {
    routes = route(model, {.optimizer = Algorithm::adamw});
    // Under whole_param matrices of both, and of the root, are in one bucket where buckets span units.
    for (auto& [name, p] : model.named_parameters())
      if (o.layout == LayoutPolicy::whole_param && p.shape().size() == 2) p.set_cut(CutClass::row);
    const DeviceMesh mesh = mesh_of(r, replicas);
    fully_shard(model.maker, mesh, o);
    fully_shard(model.judge, mesh, o);
    fully_shard(model, mesh, o);
    maker.emplace(model, routes.part("^maker"), OptimizerOptions{});
    judge.emplace(model, routes.part([](const Route& route) { return route.name.starts_with("judge"); }),
                  OptimizerOptions{});
  }
  Device& device;
  Pair model;
  Routing routes;
  std::optional<Optimizer> maker, judge;
};

struct Case {
  int ranks = 1;
  Strategy strategy = Strategy::optim_grads_params;
  int replicas = 1;
  Outer outer = Outer::no_shard;
  LayoutPolicy layout = LayoutPolicy::ragged;
  DType compute = DType::f32;
  FullyShardOptions options() const {
    return {.strategy = strategy, .outer = outer, .compute_dtype = compute, .layout = layout};
  }
};

class SeveralOptimizers : public ::testing::TestWithParam<Case> {};

TEST_P(SeveralOptimizers, StepOneAfterTheOtherBehindOneBackward) {
  launch(GetParam().ranks, [&](RankContext& r) {
    Both both(r, GetParam().options(), GetParam().replicas);
    Plain plain(both.device, both.model);
    double lr_sum = 0;
    for (int step = 0; step < 3; ++step) {
      both.model.train(both.device, step);
      both.maker->step(kMakerRate);
      plain.update("maker", {step}, kMakerRate);
      both.judge->step(kJudgeRate);
      plain.update("judge", {step}, kJudgeRate);
      lr_sum += kMakerRate + kJudgeRate;
      plain.expect_same(both.model, r.world->size(), lr_sum);
    }
  });
}

TEST_P(SeveralOptimizers, TakeTurnsAndEachPassMayLeaveTheOtherOut) {
  launch(GetParam().ranks, [&](RankContext& r) {
    Both both(r, GetParam().options(), GetParam().replicas);
    Plain plain(both.device, both.model);
    double lr_sum = 0;
    for (int step = 0; step < 3; ++step) {
      both.model.uses_maker = false;  // the judge alone, over two microbatches
      both.model.train(both.device, 4 * step, false);
      both.model.train(both.device, 4 * step + 1);
      EXPECT_FALSE(both.maker->updates().ready());
      EXPECT_THAT(message_of<InvalidArgument>([&] { both.maker->step(1); }),
                  HasSubstr("needs final gradients"));
      both.judge->step(kJudgeRate);
      plain.update("judge", {4 * step, 4 * step + 1}, kJudgeRate);
      both.model.uses_maker = true;  // the maker's, through the judge
      both.model.train(both.device, 4 * step + 2);
      // Gradients that an earlier pass left out are measured, clipped and read again.
      EXPECT_GT(read_stats(both.model, clip_grad_norm(*both.maker, 0)).norm, 0);
      both.maker->step(kMakerRate);
      plain.update("maker", {4 * step + 2}, kMakerRate);
      both.judge->zero_grad();
      lr_sum += kMakerRate + kJudgeRate;
      plain.expect_same(both.model, r.world->size(), lr_sum);
    }
    EXPECT_EQ(both.judge->steps(), 3);
    EXPECT_EQ(both.judge->skipped(), 0);
  });
}

// One of the judge's parameters in some of the steps, and all of the maker's in one.
TEST_P(SeveralOptimizers, FrozenParametersAreLeftAlone) {
  launch(GetParam().ranks, [&](RankContext& r) {
    Both both(r, GetParam().options(), GetParam().replicas);
    Plain plain(both.device, both.model);
    ShardRuntime& runtime = runtime_of(both.model);
    both.model.judge.touches = [](const std::string& name) { return name != "judge.weight"; };
    std::vector<Parameter> weight, makers;
    for (auto& [name, p] : both.model.named_parameters()) {
      if (name == "judge.weight") weight.push_back(p);
      if (name.starts_with("maker")) makers.push_back(p);
    }
    double lr_sum = 0;
    for (int step = 0; step < 3; ++step) {
      const bool frozen = step < 2;
      runtime.set_frozen(weight, frozen);
      runtime.set_frozen(makers, step == 1);
      both.model.uses_maker = step != 1;
      if (!frozen) both.model.judge.touches = [](const std::string&) { return true; };
      both.model.train(both.device, step);
      EXPECT_THAT(message_of<InvalidArgument>([&] { runtime.set_frozen(weight, !frozen); }),
                  HasSubstr("gradients of this step"));
      both.judge->step(kJudgeRate);
      for (const char* whose : {"judge.bias", "judge_gain"}) plain.update(whose, {step}, kJudgeRate);
      if (!frozen) plain.update("judge.weight", {step}, kJudgeRate);
      if (step == 1) {
        EXPECT_THAT(message_of<InvalidArgument>([&] { both.maker->step(1); }), HasSubstr("are frozen"));
      } else {
        both.maker->step(kMakerRate);
        plain.update("maker", {step}, kMakerRate);
      }
      lr_sum += kMakerRate + kJudgeRate;
      plain.expect_same(both.model, r.world->size(), lr_sum);
    }
  });
}

TEST_P(SeveralOptimizers, DroppedGradientsLeaveNoTrace) {
  launch(GetParam().ranks, [&](RankContext& r) {
    Both both(r, GetParam().options(), GetParam().replicas);
    Stream& s = both.device.compute();
    Plain plain(both.device, both.model);
    const std::vector<float> before = weights(both.model, s);
    const float huge = 1e30f;
    both.model.train(both.device, 7, true, huge);  // final
    zero_grad(both.model);
    EXPECT_THAT(message_of<InvalidArgument>([&] { clip_grad_norm(both.model, 0); }),
                HasSubstr("needs final gradients"));
    both.model.train(both.device, 8, false, huge);  // between microbatches
    zero_grad(both.model);
    zero_grad(both.model);
    EXPECT_TRUE(same_bits(weights(both.model, s), before));
    both.model.train(both.device, 0, false);  // the judge's alone, beside those of the maker that count
    both.judge->zero_grad();
    both.model.train(both.device, 1);
    both.maker->step(kMakerRate);
    both.judge->step(kJudgeRate);
    plain.update("maker", {0, 1}, kMakerRate);
    plain.update("judge", {1}, kJudgeRate);
    plain.expect_same(both.model, r.world->size(), kMakerRate + kJudgeRate);
    EXPECT_EQ(both.maker->steps(), 1);

    both.model.forward_pass(both.device);  // a forward is due: it stays so
    zero_grad(both.model);
    both.model.pass = both.model.maker.pass = both.model.judge.pass = 5;
    both.model.taped.backward();
    both.maker->step(kMakerRate);
    both.judge->step(kJudgeRate);
    plain.update("maker", {5}, kMakerRate);
    plain.update("judge", {5}, kJudgeRate);
    plain.expect_same(both.model, r.world->size(), 2 * (kMakerRate + kJudgeRate));
  });
}

TEST_P(SeveralOptimizers, ClipAndSkipByThemselves) {
  launch(GetParam().ranks, [&](RankContext& r) {
    Both both(r, GetParam().options(), GetParam().replicas);
    Stream& s = both.device.compute();
    std::map<std::string, double> squares;
    for (auto& [name, p] : both.model.named_parameters())
      for (const float g : Leaf::gradient(p.name(), p.numel(), 0, 1))
        squares[name.substr(0, 5)] += double{g} * g;
    both.model.train(both.device, 0);
    const auto judges = clip_grad_norm(*both.judge, 0.5), makers = clip_grad_norm(*both.maker, 0);
    const auto all = clip_grad_norm(both.model, 0);
    s.synchronize();
    EXPECT_NEAR(judges->norm, std::sqrt(squares["judge"]), 1e-5);
    EXPECT_NEAR(makers->norm, std::sqrt(squares["maker"]), 1e-5);
    EXPECT_NEAR(all->norm, std::sqrt(0.25 + squares["maker"]), 1e-5)
        << "the judge's have been clipped to 0.5";
    zero_grad(both.model);

    for (const bool clips : {false, true}) {
      both.model.train(both.device, 0);
      const std::string bad = "judge_gain";
      for (auto& [name, p] : both.model.named_parameters())
        if (name == bad && p.grad_shard().numel() > 0)
          ops::fill(s, p.grad_shard().flat(0, 1), std::numeric_limits<double>::quiet_NaN());
      if (clips) clip_grad_norm(*both.judge, 1), clip_grad_norm(*both.maker, 1);
      both.maker->step(kMakerRate);
      both.judge->step(kJudgeRate);
      EXPECT_EQ(both.maker->skipped(), 0);
      EXPECT_EQ(both.judge->skipped(), clips ? 2 : 1);
    }
    both.model.train(both.device, 0);
    for (auto& [name, p] : both.model.named_parameters())
      if (p.grad_shard().numel() > 0)
        ops::fill(s, p.grad_shard().flat(0, 1), std::numeric_limits<double>::infinity());
    clip_grad_norm(both.model, 1);
    both.judge->step(kJudgeRate);
    both.maker->step(kMakerRate);
    EXPECT_EQ(both.maker->skipped(), 1);
    EXPECT_EQ(both.judge->skipped(), 3);
  });
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Strategy s : kEveryStrategy) {
    for (const int ranks : {1, 3, 4}) all.push_back({.ranks = ranks, .strategy = s});
    for (const Outer o : {Outer::no_shard, Outer::optim})
      all.push_back({.ranks = 4, .strategy = s, .replicas = 2, .outer = o});
    all.push_back({.ranks = 4, .strategy = s, .layout = LayoutPolicy::even_rows});
    all.push_back({.ranks = 4, .strategy = s, .layout = LayoutPolicy::whole_param, .compute = DType::bf16});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Meshes, SeveralOptimizers, ::testing::ValuesIn(cases()));

// Muon's and AdamW's halves, each an optimizer: the same bits as both in one.
TEST(SeveralOptimizersOfOneModel, GiveTheBitsOfOne) {
  for (const Strategy strategy : kEveryStrategy) {
    for (const DType compute : {DType::f32, DType::bf16}) {
      std::array<std::vector<std::vector<float>>, 2> got;
      for (const bool split : {false, true}) {
        got[split].resize(3);
        launch(3, [&](RankContext& r) {
          ToyModel model(13, 29, 2);
          const Routing routes = route(model);
          FullyShardOptions o{.strategy = strategy};
          if (strategy == Strategy::optim_grads)
            o.layout = LayoutPolicy::whole_param;  // a bucket spans both blocks
          o.compute_dtype = compute;
          const DeviceMesh mesh = mesh_of(r);
          for (auto& b : model.blocks_) fully_shard(*b, mesh, o);
          fully_shard(model, mesh, o);
          std::vector<std::unique_ptr<Optimizer>> all;
          const auto is = [](const Algorithm& a) {
            return [a](const Route& route) { return route.algorithm == a; };
          };
          const auto make = [&](const Routing& some) {
            all.push_back(std::make_unique<Optimizer>(model, some, OptimizerOptions{.weight_decay = 0.1}));
          };
          if (split) {
            make(routes.part(is(Algorithm::muon)));
            make(routes.part(is(Algorithm::adamw)));
          } else {
            make(routes);
          }
          const Tensor tokens = Tensor::empty(*r.device, {1, 6}, DType::i32, "test");
          model.targets = Tensor::empty(*r.device, {1, 6}, DType::i32, "test");
          ops::fill(r.device->compute(), tokens, 3 + r.world->rank());
          ops::fill(r.device->compute(), model.targets, 4);
          for (int step = 0; step < 3; ++step) {
            run_pass(model, tokens);
            clip_grad_norm(model, 0.5);
            for (auto& optimizer : all) optimizer->step(0.02);
          }
          got[split][static_cast<size_t>(r.world->rank())] = weights(model, r.device->compute());
        });
      }
      for (size_t rank = 0; rank < 3; ++rank)
        EXPECT_TRUE(same_bits(got[0][rank], got[1][rank])) << name_of(strategy) << " " << name_of(compute);
    }
  }
}

TEST(SeveralOptimizersOfOneModel, ASetThatIsLeftOutCostsNoReduction) {
  launch(2, [](RankContext& r) {
    Both both(r, {});
    const auto reductions = [&] {
      runtime_of(both.model).wait_gradients();
      both.device.compute().synchronize();
      const CommCounts before = r.world->counts();
      both.model.train(both.device, 0);
      runtime_of(both.model).wait_gradients();
      both.device.compute().synchronize();
      return minus(r.world->counts(), before)["reduce_scatter"].calls;
    };
    EXPECT_EQ(reductions(), 3);
    zero_grad(both.model);
    both.model.uses_maker = false;
    EXPECT_EQ(reductions(), 2);
  });
}

TEST(SeveralOptimizersMisuse, EveryParameterHasExactlyOne) {
  launch(2, [](RankContext& r) {
    Both both(r, {});
    both.model.train(both.device, 0);
    EXPECT_THAT(message_of<InvalidArgument>([&] { Optimizer(both.model, both.routes.part("gain"), {}); }),
                HasSubstr("another optimizer of this root updates: maker_gain, judge_gain"));
    EXPECT_THAT(message_of<InvalidArgument>([&] { Optimizer(both.model, both.routes, {}); }),
                HasSubstr("maker.weight"));
    both.judge.reset();
    EXPECT_THAT(message_of<InvalidArgument>([&] { both.maker->step(1); }),
                HasSubstr("no optimizer of this root updates: judge.weight, judge.bias, judge_gain"));
    both.judge.emplace(both.model, both.routes.part("^judge"), OptimizerOptions{});
    EXPECT_EQ(message_of<InvalidArgument>([&] { both.maker->step(1), both.judge->step(1); }),
              "nothing was thrown")
        << "one that is made behind the backward finds its gradients";
    EXPECT_THAT(message_of<InvalidArgument>([&] { (void)both.routes.part("nobody"); }),
                HasSubstr("('nobody') matches"));
    EXPECT_THAT(message_of<InvalidArgument>([&] { (void)both.routes.part(std::vector<Parameter>{}); }),
                HasSubstr("none of the 5 routes"));
    Leaf other;
    EXPECT_THAT(message_of<InvalidArgument>([&] { (void)both.routes.part({other.add("foreign", {2})}); }),
                HasSubstr("no route of: foreign"));
  });
}

TEST(SeveralOptimizersMisuse, FinalGradientsAreUsedOrDroppedBeforeTheNextBackward) {
  launch(2, [](RankContext& r) {
    Both both(r, {});
    both.model.train(both.device, 0);
    both.maker->step(0.1);
    EXPECT_THAT(message_of<InvalidArgument>([&] { both.maker->step(0.1); }),
                HasSubstr("reached the parameters of this optimizer"));
    EXPECT_THAT(message_of<InvalidArgument>([&] { both.model.unit()->pre_backward(); }),
                HasSubstr("give the gradients up by zero_grad()"));
    zero_grad(both.model);
    both.model.touches = [](const std::string&) -> bool { throw std::runtime_error("in the backward"); };
    EXPECT_THROW(both.model.train(both.device, 1), std::runtime_error);
    EXPECT_THAT(message_of<InvalidArgument>([&] { zero_grad(both.model); }), HasSubstr("reset_step()"));
    both.model.touches = [](const std::string&) { return true; };
    reset_step(both.model);
    both.model.train(both.device, 1);
    both.judge->zero_grad();
    both.judge->zero_grad();
    both.maker->step(0.1);
    both.model.train(both.device, 1);
    both.maker->step(0.1);
    both.judge->step(0.1);
  });
}

TEST(SeveralOptimizersMisuse, ASetIsReachedAsAWholeOrNotAtAll) {
  launch(2, [](RankContext& r) {
    Both both(r, {});
    both.model.uses_maker = false;
    both.model.touches = [](const std::string&) { return false; };
    EXPECT_THAT(message_of<InvalidArgument>([&] { both.model.train(both.device, 0); }),
                HasSubstr("1 parameter(s): judge_gain"));
  });
}

}  // namespace
}  // namespace sherd::test
