// Steps whose gradients are not finite somewhere: skipped by all ranks, as if they had not happened.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <thread>

#include "optim/whole_tensors.h"
#include "support/message_of.h"
#include "support/rig.h"

namespace sherd::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

/// Gradients of one step: a wave, but for one element of one parameter on one rank.
struct Gradients {
  int wave = 0;
  std::string bad = {};  // the parameter; none
  int on = 0;            // the world's rank
  float value = kNan;
};

/// Parameters whose gradients the test makes.
struct SkipLeaf : MadeGradients {
  Parameter add(const std::string& name, Shape shape) { return param(name, std::move(shape), normal(1)); }
  void use(const Gradients& gradients, int data_rank, int world_rank) {
    gradients_ = gradients;
    data_rank_ = data_rank;
    world_rank_ = world_rank;
  }

  void put_gradients() override {
    for (auto& p : own_parameters()) {
      if (p.frozen()) continue;
      std::vector<float> g(static_cast<size_t>(p.numel()));
      for (size_t i = 0; i < g.size(); ++i)
        g[i] =
            static_cast<float>(std::sin(0.7 * static_cast<double>(i) + gradients_.wave + 0.3 * data_rank_));
      if (p.name() == gradients_.bad && world_rank_ == gradients_.on) g[g.size() / 2] = gradients_.value;
      const Tensor grad = p.grad();
      ops::copy_from_host(grad.device().compute(), grad, g.data(), grad.nbytes());
    }
  }

 private:
  Gradients gradients_;
  int data_rank_ = 0, world_rank_ = 0;
};

/// A root around one wrapped child.
struct Net : SkipLeaf {
  SkipLeaf inner;
  Net() { child("inner", inner); }
  nn::Var forward(const nn::Var& x) override { return inner(SkipLeaf::forward(x)); }
};

struct SkipSetting {
  const char* what;
  std::vector<MeshDim> mesh = {{"shard", 4}};
  Strategy strategy = Strategy::optim_grads_params;
  Outer outer = Outer::no_shard;
  bool cuts = false;     // inner.up.weight is cut over "tp"
  bool freezes = false;  // inner.up.weight is not trained
  bool experts = false;  // inner is a stack of experts on a mesh of its own
  bool ignores = false;
  DType compute = DType::f32;
};

/// Bits of weights and states on each rank, after every step; and other results of a run.
struct Course {
  std::vector<std::vector<std::vector<float>>> after;  // [step][rank]
  int64_t skipped = 0;
  std::vector<CommCounts> counts;  // of rank 0, in clipping and stepping
  int64_t waits = 0;               // of rank 0, in the same
};

Course run(const SkipSetting& setting, Algorithm algorithm, double clip, const std::vector<Gradients>& steps,
           bool skip = true) {
  Course course;
  course.after.assign(steps.size() + 1, std::vector<std::vector<float>>(4));
  launch(4, [&](RankContext& r) {
    const int rank = r.world->rank();
    const DeviceMesh mesh(r.world, setting.mesh);
    Net net;
    Parameter up = net.inner.add("up.weight", setting.experts ? Shape{1, 6, 4} : Shape{6, 4});
    Parameter gain = net.inner.add("gain.weight", setting.experts ? Shape{1, 3} : Shape{3});
    net.add("head.weight", {5, 4});
    net.add("norm.weight", {7});
    if (setting.ignores) net.add("ignored.weight", {3});
    if (setting.cuts) up.set_tensor_shard({"tp", 0, 2, mesh.coordinate("tp")});
    if (setting.freezes) up.freeze();
    FullyShardOptions o{
        .strategy = setting.strategy, .outer = setting.outer, .compute_dtype = setting.compute};
    RootOptions root;
    if (setting.ignores) root.ignored = {"ignored.weight"};
    int data_rank = rank;
    if (setting.cuts) data_rank = rank / 2;
    std::optional<DeviceMesh> experts;
    if (setting.experts) {
      experts.emplace(r.world, std::vector<MeshDim>{{"expert_shard", 2}, {"expert", 2}});
      for (Parameter p : {up, gain}) p.set_tensor_shard({"expert", 0, 2, experts->coordinate("expert")});
    }
    const Routing routes = route(net, {.optimizer = algorithm});
    if (setting.experts) {
      FullyShardOptions e = o;
      e.shard_dim = "expert_shard";
      e.gradient_ranks = 4;
      fully_shard(net.inner, *experts, e);
    } else {
      fully_shard(net.inner, mesh, o);
    }
    fully_shard(net, mesh, o, root);
    Optimizer optimizer(net, routes, {.adamw = {}, .muon = {}, .weight_decay = 0.1, .skip_non_finite = skip});
    Stream& s = r.device->compute();
    const auto note = [&](size_t at) {
      std::vector<float>& all = course.after[at][static_cast<size_t>(rank)];
      const auto add = [&](const Tensor& t) {
        const auto values = ops::to_floats(s, t);
        all.insert(all.end(), values.begin(), values.end());
      };
      for (auto& [name, p] : net.named_parameters()) add(p.shard());
      for (auto& t : optimizer.state()) add(t.local);
      for (auto& c : optimizer.counters()) add(c.value);
    };
    note(0);
    const Tensor in = Tensor::empty(*r.device, {1}, DType::f32, "test");
    for (size_t i = 0; i < steps.size(); ++i) {
      net.use(steps[i], data_rank, rank);
      net.inner.use(steps[i], data_rank, rank);
      run_pass(net, in);
      runtime_of(net).wait_gradients();
      s.synchronize();
      const CommCounts before = r.world->counts();
      const int64_t waits = r.device->host_syncs(std::this_thread::get_id());
      std::shared_ptr<const GradientStats> stats;
      if (clip >= 0) stats = clip_grad_norm(net, clip);
      optimizer.step(0.1);
      if (rank == 0) {
        course.waits += r.device->host_syncs(std::this_thread::get_id()) - waits;
        s.synchronize();
        course.counts.push_back(minus(r.world->counts(), before));
      }
      note(i + 1);
      if (stats == nullptr) continue;
      const bool bad = !steps[i].bad.empty() && !std::isfinite(steps[i].value);
      EXPECT_EQ(std::isnan(read_stats(net, stats).norm), bad) << "rank " << rank;
      EXPECT_EQ(stats->non_finite > 0, bad) << "rank " << rank;
    }
    const int64_t skipped = optimizer.skipped();
    const Tensor copy = optimizer.copy_skipped();
    s.synchronize();
    EXPECT_EQ(*copy.data<int64_t>(), skipped);
    EXPECT_EQ(optimizer.steps(), static_cast<int64_t>(steps.size()));
    if (rank == 0) course.skipped = skipped;
  });
  return course;
}

std::vector<std::pair<SkipSetting, std::vector<std::string>>> settings() {
  const std::vector<std::string> dense = {"inner.up.weight", "norm.weight"};
  const std::vector<std::string> ignored = {"ignored.weight"};
  std::vector<std::pair<SkipSetting, std::vector<std::string>>> all;
  for (const Strategy s : kEveryStrategy) {
    all.push_back({{.what = name_of(s), .strategy = s}, dense});
    all.push_back({{.what = "ignored", .strategy = s, .ignores = true}, ignored});
  }
  const std::vector<MeshDim> hsdp = {{"replicate", 2}, {"shard", 2}}, tp = {{"shard", 2}, {"tp", 2}};
  for (const Outer o : {Outer::no_shard, Outer::optim})
    all.push_back({{.what = "replicas", .mesh = hsdp, .outer = o, .ignores = true},
                   {"inner.up.weight", "ignored.weight"}});
  all.push_back({{.what = "bf16 copies", .compute = DType::bf16}, dense});
  for (const Strategy s : {Strategy::no_shard, Strategy::optim_grads_params}) {
    // norm.weight is whole on the ranks of "tp": one of them alone sees the element.
    all.push_back({{.what = "tensor parallel", .mesh = tp, .strategy = s, .cuts = true}, dense});
    all.push_back({{.what = "tensor parallel, of uncut parameters",
                    .mesh = tp,
                    .strategy = s,
                    .cuts = true,
                    .freezes = true},
                   {"inner.gain.weight", "norm.weight"}});
    all.push_back({{.what = "experts", .strategy = s, .experts = true},
                   {"inner.up.weight", "inner.gain.weight", "head.weight"}});
    all.push_back({{.what = "experts, ignored", .strategy = s, .experts = true, .ignores = true}, ignored});
  }
  return all;
}

class SkippedStepsOf : public ::testing::TestWithParam<Algorithm> {};

TEST_P(SkippedStepsOf, ChangeNothingOnAnyRankAndTheNextContinueAsIfWithoutThem) {
  // Every setting with and without, once each, over both optimizers.
  int clips = GetParam() == Algorithm::muon ? 1 : 0;
  for (const auto& [setting, names] : settings()) {
    for (const double clip : {clips++ % 2 == 0 ? -1.0 : 0.5}) {
      const Course clean = run(setting, GetParam(), clip, {{.wave = 0}, {.wave = 2}, {.wave = 3}});
      EXPECT_EQ(clean.skipped, 0);
      for (const std::string& name : names) {
        SCOPED_TRACE(fmt::format("{} {} clip {} {}", setting.what, name_of(setting.strategy), clip, name));
        const Gradients bad{.wave = 1, .bad = name, .on = 3, .value = kNan},
            first{.wave = 5, .bad = name, .on = 0, .value = kInf};
        Course got = run(setting, GetParam(), clip, {first, {.wave = 0}, bad, {.wave = 2}, {.wave = 3}});
        EXPECT_EQ(got.skipped, 2);
        EXPECT_TRUE(same_bits(got.after[1], got.after[0])) << "the first step";
        EXPECT_TRUE(same_bits(got.after[2], clean.after[1])) << "the second step";
        EXPECT_FALSE(same_bits(got.after[2], got.after[1])) << "the second step moves";
        EXPECT_TRUE(same_bits(got.after[3], clean.after[1])) << "the third step";
        EXPECT_TRUE(same_bits(got.after[5], clean.after[3])) << "at the end";
        for (size_t i = 1; i < got.counts.size(); ++i)
          for (auto& [call, count] : got.counts[0])
            EXPECT_EQ(got.counts[i][call].calls, count.calls) << call << " of step " << i + 1;
        EXPECT_EQ(got.waits, 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, SkippedStepsOf, ::testing::Values(Algorithm::adamw, Algorithm::muon),
                         [](const auto& run) { return std::string(name_of(run.param)); });

TEST(SkippedSteps, CostOneAllReduceWithoutClippingAndNoneWithIt) {
  for (const auto& [setting, names] : settings()) {
    const int64_t once = run(setting, Algorithm::adamw, -1, {{}}).counts[0]["all_reduce"].calls;
    EXPECT_EQ(once, 1) << setting.what;
    const CommCounts with = run(setting, Algorithm::adamw, 0, {{}}).counts[0];
    const CommCounts off = run(setting, Algorithm::adamw, 0, {{}}, false).counts[0];
    for (auto& [call, count] : with) EXPECT_EQ(off.at(call).calls, count.calls) << setting.what << call;
    EXPECT_EQ(run(setting, Algorithm::adamw, -1, {{}}, false).counts[0]["all_reduce"].calls, 0);
  }
  const auto calls = [](SkipSetting s) {
    return run(s, Algorithm::adamw, 0, {{}}).counts[0]["all_reduce"].calls;
  };
  EXPECT_EQ(calls({.what = "zero0", .strategy = Strategy::no_shard}), 0);
  EXPECT_EQ(calls({.what = "zero0, ignored", .strategy = Strategy::no_shard, .ignores = true}), 1);
  EXPECT_EQ(calls({.what = "zero3, ignored", .ignores = true}), 1) << "it rides along";
  const std::vector<MeshDim> tp = {{"shard", 2}, {"tp", 2}};
  for (const bool freezes : {false, true}) {
    EXPECT_EQ(calls({.what = "tp", .mesh = tp, .cuts = true, .freezes = freezes}), 2);
    EXPECT_EQ(calls({.what = "tp, zero0",
                     .mesh = tp,
                     .strategy = Strategy::no_shard,
                     .cuts = true,
                     .freezes = freezes}),
              1);
  }
}

TEST(SkippedSteps, ANormBeyondFp32IsNotFiniteEither) {
  for (const double clip : {-1.0, 0.0, 1.0}) {
    const Gradients huge{.wave = 1, .bad = "head.weight", .on = 1, .value = 3e38f};
    // Averaged over four ranks, the element itself is finite and so is its square root; the square is not.
    const Course fine = run({.what = ""}, Algorithm::adamw, clip, {huge});
    EXPECT_EQ(fine.skipped, 0) << "7.5e37 is a norm";
    struct Huge : SkipLeaf {
      Parameter p = add("p.weight", {4});
      void put_gradients() override { ops::fill(p.grad().device().compute(), p.grad(), 3e38); }
    };
    launch(2, [&](RankContext& r) {
      Huge model;
      const Routing routes = route(model);
      fully_shard(model, mesh_of(r));
      Optimizer optimizer(model, routes, {});
      run_pass(model, Tensor::empty(*r.device, {1}, DType::f32, "test"));
      if (clip >= 0) clip_grad_norm(model, clip);
      optimizer.step(0.1);
      EXPECT_EQ(optimizer.skipped(), 1) << clip;
    });
  }
}

TEST(SkippedSteps, AreTakenWhenTheyAreSwitchedOff) {
  const Gradients bad{.wave = 1, .bad = "head.weight", .on = 2, .value = kNan};
  for (const double clip : {-1.0, 1.0}) {
    const Course got = run({.what = ""}, Algorithm::adamw, clip, {{}, bad}, false);
    EXPECT_EQ(got.skipped, 0);
    bool found = false;
    for (auto& rank : got.after[2])
      for (const float v : rank) found = found || std::isnan(v);
    EXPECT_TRUE(found);
  }
}

// Losses of the four ranks: one of them alone is enough, and gradients need not be bad.
TEST(SkippedSteps, ALossThatIsNotFiniteOnOneRankSkipsTheStepOnAll) {
  for (const Strategy strategy : {Strategy::no_shard, Strategy::optim_grads_params}) {
    launch(4, [&](RankContext& r) {
      Rig rig(r, {.strategy = strategy});
      Stream& s = r.device->compute();
      const auto weights = [&] {
        return ops::to_floats(s, rig.model.named_parameters().at(2).second.shard());
      };
      const auto step = [&](double loss_of_rank_2) {
        rig.forward();
        rig.backward();
        clip_grad_norm(rig.model, 1.0);
        const double mine = r.world->rank() == 2 ? loss_of_rank_2 : 2;
        const Tensor loss = Tensor::empty(*r.device, {1}, DType::f64, "test");
        ops::fill(s, loss, mine);
        r.world->all_reduce(s, loss);
        skip_unless_finite(rig.model, loss);
        rig.optimizer->step(0.01);
      };
      step(1);
      const auto before = weights();
      step(kNan);
      step(kInf);
      step(-kInf);
      EXPECT_EQ(rig.optimizer->skipped(), 3);
      EXPECT_EQ(weights(), before);
      step(0);
      EXPECT_EQ(rig.optimizer->skipped(), 3) << "a loss of zero is one";
      if (strategy == Strategy::no_shard) {
        EXPECT_NE(weights(), before);
      }
      const Tensor loss = Tensor::empty(*r.device, {1}, DType::f64, "test");
      EXPECT_THROW(skip_unless_finite(rig.model, loss), InvalidArgument) << "nobody has looked at gradients";
    });
  }
}

// Gradients that are not finite stay the reason, whatever the loss is, and the step counts once.
TEST(SkippedSteps, BadGradientsAndABadLossAreOneSkippedStep) {
  launch(2, [](RankContext& r) {
    Net net;
    net.add("w.weight", {4, 4});
    const Routing routes = route(net);
    fully_shard(net, mesh_of(r));
    Optimizer optimizer(net, routes, {});
    const Gradients bad{.bad = "w.weight", .on = 1, .value = kInf};
    for (const double value : {1.0, double{kNan}}) {
      net.use(bad, r.world->rank(), r.world->rank());
      run_pass(net, Tensor::empty(*r.device, {1}, DType::f32, "test"));
      clip_grad_norm(net, 0);
      const Tensor loss = Tensor::empty(*r.device, {1}, DType::f64, "test");
      ops::fill(r.device->compute(), loss, value);
      skip_unless_finite(net, loss);
      optimizer.step(0.1);
    }
    EXPECT_EQ(optimizer.skipped(), 2);
    optimizer.set_skipped(7);
    EXPECT_EQ(optimizer.skipped(), 7);
  });
}

TEST(OptimizerMisuse, OptionsThatCannotBeAreAllNamed) {
  launch(1, [](RankContext& r) {
    Net net;
    net.add("w.weight", {4, 4});
    net.inner.add("v.weight", {4, 4});
    const Routing routes = route(net);
    fully_shard(net, mesh_of(r));
    OptimizerOptions o;
    o.adamw = {.beta1 = 1, .beta2 = -0.1, .eps = kNan};
    o.muon.whole.momentum = 1;
    o.muon.orthogonalize.steps.clear();
    o.muon.scale_factor = kInf;
    o.muon.whole.transient_bytes = -1;
    o.muon.whole.payload = DType::f64;
    o.weight_decay = -0.5;
    const auto refusal = [&](const auto& f) { return message_of<InvalidArgument>([&] { f(); }); };
    const std::string text = refusal([&] { Optimizer(net, routes, o); });
    for (const char* part : {"beta1 1 ", "beta2 -0.1 ", "eps nan", "momentum 1 ", "no steps",
                             "scale_factor inf", "transient_bytes -1", "payload f64", "weight decay -0.5"})
      EXPECT_THAT(text, HasSubstr(part));
    Device& device = *r.device;
    EXPECT_THAT(refusal([&] {
                  AdamW(device, {{net.inner.own_parameters()[0], kNan}}, {});
                }),
                HasSubstr("weight decay nan of inner.v.weight"));
    EXPECT_THAT(refusal([&] {
                  Muon(device, {{net.inner.own_parameters()[0], -1}}, {});
                }),
                HasSubstr("weight decay -1 of inner.v.weight"));

    Optimizer optimizer(net, routes, {});
    run_pass(net, Tensor::empty(device, {1}, DType::f32, "test"));
    for (const double lr : {-0.1, double{kNan}, double{kInf}})
      EXPECT_THAT(refusal([&] { optimizer.step(lr); }), HasSubstr(fmt::format("learning rate {}", lr)));
    EXPECT_EQ(optimizer.steps(), 0);
    EXPECT_THAT(refusal([&] { clip_grad_norm(net, kNan); }), HasSubstr("max_norm nan"));
    clip_grad_norm(net, kInf);
    optimizer.step(0);
    EXPECT_EQ(optimizer.steps(), 1);
  });
}

TEST(OptimizerMisuse, ARoutingMustBeThisModels) {
  launch(1, [](RankContext& r) {
    const DeviceMesh mesh = mesh_of(r);
    ToyModel model(8, 12, 1), other(8, 12, 1);
    model.head_.freeze();
    const Routing of_other = route(other), good = route(model);
    fully_shard(model, mesh);
    const auto refusal = [&](const Routing& routes) {
      return message_of<InvalidArgument>([&] { Optimizer(model, routes, {}); });
    };
    EXPECT_THAT(refusal(of_other), HasSubstr("that this model does not have: embed.weight"));
    fully_shard(other, mesh);
    EXPECT_THAT(refusal(of_other), HasSubstr("that this model does not have: embed.weight"));
    Routing partial = good;
    partial.routes.pop_back();
    EXPECT_THAT(refusal(partial), HasSubstr("without a route: " + good.routes.back().name));
    Routing twice = good;
    twice.routes.push_back(good.routes.front());
    EXPECT_THAT(refusal(twice), HasSubstr("routed twice: " + good.routes.front().name));
    Routing frozen = good;
    frozen.routes.push_back({"head.weight", model.head_});
    EXPECT_THAT(refusal(frozen), HasSubstr("routes of frozen parameters: head.weight"));
    EXPECT_THAT(refusal({}), HasSubstr("without a route: "));
    EXPECT_EQ(refusal(good), "nothing was thrown");
  });
}

}  // namespace
}  // namespace sherd::test
