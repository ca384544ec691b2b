// Norms other than the second, errors instead of skipped steps, clamping, and reading figures.
#include <sherd/kernels/device/trace.h>

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "support/message_of.h"
#include "support/sgd.h"
#include "support/toy_model.h"

namespace sherd::test {
namespace {

struct Some : GivenGradients {
  Some() {
    add("a.weight", {7, 5});
    add("b.weight", {3});
    add("c.weight", {6, 4, 2});
    add("d.weight", {1});
  }
  void run(Device& device, bool spoil = false) {
    spoils = spoil;
    run_pass(*this, Tensor::empty(device, {1}, DType::f32, "test"));
  }
  bool spoils = false;
  void put_gradients() override {
    GivenGradients::put_gradients();
    const Tensor g = own_parameters().front().grad();
    if (spoils) ops::fill(g.device().compute(), g.flat(0, 1), std::numeric_limits<double>::quiet_NaN());
  }
};

struct Setting {
  Strategy strategy = Strategy::optim_grads_params;
  int replicas = 1;
  LayoutPolicy layout = LayoutPolicy::ragged;
};

std::vector<Setting> settings(int ranks) {
  std::vector<Setting> all;
  for (const Strategy s : kEveryStrategy) {
    all.push_back({s});
    all.push_back({s, 1, LayoutPolicy::even_rows});
    if (ranks % 2 == 0) all.push_back({s, 2});
  }
  return all;
}

void on_ranks(int ranks, const Setting& setting,
              const std::function<void(RankContext&, Some&, Optimizer&)>& f) {
  launch(ranks, [&](RankContext& r) {
    Some model;
    const Routing routing = route(model, {.optimizer = Algorithm::adamw});
    const DeviceMesh mesh(r.world, {{"replicate", setting.replicas}, {"shard", ranks / setting.replicas}});
    fully_shard(model, mesh, {.strategy = setting.strategy, .layout = setting.layout});
    Optimizer optimizer(model, routing, {});
    f(r, model, optimizer);
  });
}

std::vector<float> gradients(Some& model, Stream& s) {
  std::vector<float> all;
  for (auto& [name, p] : model.named_parameters()) {
    const auto g = ops::to_floats(s, DTensor::from_layout(p.group().mesh(), p.group().sharded_over(),
                                                          std::make_shared<ShardLayout>(p.group().layout()),
                                                          p.index_in_group(), p.grad_shard())
                                         .full_tensor(s));
    all.insert(all.end(), g.begin(), g.end());
  }
  return all;
}

class Norms : public ::testing::TestWithParam<NormKind> {};

TEST_P(Norms, AreTheSameBitsUnderEveryStrategyLayoutAndNumberOfRanks) {
  const NormKind kind = GetParam();
  std::map<bool, std::set<float>> seen;  // by whether averages are exact
  for (const int ranks : {1, 3, 4}) {
    for (const Setting& setting : settings(ranks)) {
      on_ranks(ranks, setting, [&](RankContext& r, Some& model, Optimizer&) {
        Stream& s = r.device->compute();
        model.run(*r.device);
        runtime_of(model).wait_gradients();
        const std::vector<float> g = gradients(model, s);
        double want = 0;
        for (const float x : g) {
          const double a = std::abs(double{x});
          want = kind == NormKind::infinity ? std::max(want, a) : want + (kind == NormKind::one ? a : a * a);
        }
        if (kind == NormKind::two) want = std::sqrt(want);
        const GradientStats stats = read_stats(model, clip_grad_norm(model, want / 4, {.norm = kind}));
        EXPECT_FLOAT_EQ(stats.norm, static_cast<float>(want));
        EXPECT_EQ(stats.non_finite, 0);
        const std::vector<float> clipped = gradients(model, s);
        const float factor = static_cast<float>(want / 4) / (stats.norm + 1e-6f);
        for (size_t i = 0; i < g.size(); ++i) EXPECT_EQ(clipped[i], g[i] * factor) << i;
        const GradientStats after = read_stats(model, clip_grad_norm(model, 0, {.norm = kind}));
        EXPECT_NEAR(after.norm, want / 4, 1e-6 * want);
        if (r.world->rank() != 0) return;
        seen[ranks != 3].insert(stats.norm);
      });
    }
  }
  EXPECT_EQ(seen[true].size(), 1u);
  EXPECT_EQ(seen[false].size(), 1u);
}

TEST_P(Norms, OfGradientsThatAreNotFiniteSkipTheStepOrThrowOnAllRanksAlike) {
  const NormKind kind = GetParam();
  for (const int ranks : {1, 3, 4}) {
    for (const Setting& setting : settings(ranks)) {
      on_ranks(ranks, setting, [&](RankContext& r, Some& model, Optimizer& optimizer) {
        Stream& s = r.device->compute();
        const auto weights = [&] { return ops::to_floats(s, model.named_parameters()[2].second.shard()); };
        const std::vector<float> before = weights();
        const bool here = r.world->rank() == r.world->size() - 1;
        model.run(*r.device, here);
        EXPECT_TRUE(std::isnan(read_stats(model, clip_grad_norm(model, 1, {.norm = kind})).norm));
        optimizer.step(0.1);
        EXPECT_EQ(optimizer.skipped(), 1);
        EXPECT_EQ(weights(), before);
        model.run(*r.device, here);
        EXPECT_THAT(
            message_of<Error>([&] { clip_grad_norm(model, 1, {.norm = kind, .error_if_nonfinite = true}); }),
            HasSubstr("the gradients are not finite"));
        zero_grad(model);
        EXPECT_EQ(weights(), before);
        model.run(*r.device);
        clip_grad_norm(model, 1, {.norm = kind, .error_if_nonfinite = true});
        optimizer.step(0.1);
        EXPECT_EQ(optimizer.skipped(), 1);
        if (!before.empty()) {
          EXPECT_NE(weights(), before);
        }
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Norms, ::testing::Values(NormKind::two, NormKind::one, NormKind::infinity));

// Every parameter takes part: Muon's are scaled before its update, ignored ones are not.
TEST(ClipInUpdate, HasTheBitsOfScaledGradients) {
  for (const Algorithm& optimizer : {Algorithm::adamw, Algorithm::muon})
    for (const bool ignored : {false, true}) {
      ToyRun run{.ranks = 2, .optimizer = optimizer, .clip = 0.05};
      if (ignored) run.root.ignored = {"head.weight"};
      const ToyResult scaled = run_toy(run);
      for (const float norm : scaled.norms) EXPECT_GT(norm, run.clip) << "nothing is clipped";
      run.clip_in_update = true;
      const ToyResult inside = run_toy(run);
      EXPECT_EQ(inside.weights, scaled.weights) << name_of(optimizer) << " " << ignored;
      EXPECT_EQ(inside.norms, scaled.norms);
      run.clip = 0;
      EXPECT_NE(run_toy(run).weights, scaled.weights);
    }
}

// Two passes less: gradients are scaled where AdamW and Muon read them, and the weights that the model computes with are
// rounded where they are updated.
TEST(ClipInUpdate, HasNoPassOfItsOwnNorHaveTheRoundedWeights) {
  for (const Algorithm& optimizer : {Algorithm::adamw, Algorithm::muon})
    launch(1, [&](RankContext& r) {
      Some model;
      const Routing routing = route(model, {.optimizer = optimizer});
      fully_shard(model, mesh_of(r), {.compute_dtype = DType::bf16});
      Optimizer rules(model, routing, {});
      model.run(*r.device);
      const auto trace = std::make_shared<Trace>();
      r.device->set_trace(trace);
      trace->set_enabled(true);
      clip_grad_norm(model, 1e-3, {.in_update = true});
      rules.step(0.1);
      Unit& unit = *runtime_of(model).units().back();
      unit.unshard();
      unit.wait();
      unit.reshard();
      r.device->compute().synchronize();
      for (const TraceRecord& record : trace->records())
        EXPECT_TRUE(record.what != "scale_by" && record.what != "cast")
            << name_of(optimizer) << " " << record.what;
    });
}

TEST(ClipGradValue, ClampsEveryElement) {
  for (const int ranks : {1, 4}) {
    for (const Setting& setting : settings(ranks)) {
      on_ranks(ranks, setting, [&](RankContext& r, Some& model, Optimizer& optimizer) {
        Stream& s = r.device->compute();
        EXPECT_THROW(clip_grad_value(model, 1), InvalidArgument) << "there are none";
        model.run(*r.device);
        runtime_of(model).wait_gradients();
        const std::vector<float> g = gradients(model, s);
        clip_grad_value(model, 0.25);
        const std::vector<float> got = gradients(model, s);
        for (size_t i = 0; i < g.size(); ++i) EXPECT_EQ(got[i], std::clamp(g[i], -0.25f, 0.25f)) << i;
        EXPECT_THROW(clip_grad_value(model, -1), InvalidArgument);
        EXPECT_THROW(clip_grad_value(model, NAN), InvalidArgument);
        clip_grad_value(optimizer, 0.125);
        for (const float x : gradients(model, s)) EXPECT_LE(std::abs(x), 0.125f);
        optimizer.step(0.1);
      });
    }
  }
}

}  // namespace
}  // namespace sherd::test
