// A third optimizer is a class of the program's own: it is routed to, trains, and skips steps as the others
// do.

#include <cmath>
#include <cstring>
#include <map>

#include "optim/whole_tensors.h"

#include "support/message_of.h"
#include "support/sgd.h"
#include "support/toy_model.h"

namespace sherd::test {
namespace {

constexpr float kMomentum = 0.75f;
constexpr double kRuleLr = 0.125, kRuleDecay = 0.25;

/// One parameter for each of the three optimizers.
struct Three : GivenGradients {
  Parameter hidden = add("hidden.weight", {6, 4}), own = add("own.weight", {7, 3}),
            gain = add("gain.weight", {5});

  Routing routed() {
    return route(*this,
                 {.optimizer = Algorithm::muon, .rules = {{.pattern = "^own", .algorithm = Sgd::kName}}});
  }
  static OptimizerOptions options() {
    return {.weight_decay = kRuleDecay, .further = {Sgd::factory(kMomentum)}};
  }
};

/// Bits of all local weights and states.
std::vector<float> everything(ModuleBase& model, const Optimizer& optimizer, Stream& s) {
  std::vector<float> all;
  const auto add = [&](const Tensor& t) {
    const std::vector<float> values = ops::to_floats(s, t);
    all.insert(all.end(), values.begin(), values.end());
  };
  for (auto& [name, p] : model.named_parameters()) add(p.shard());
  for (auto& t : optimizer.state()) add(t.local);
  for (auto& c : optimizer.counters()) add(c.value);
  return all;
}

class OwnOptimizer : public ::testing::TestWithParam<std::tuple<int, Strategy, DType>> {
 protected:
  void on_ranks(const std::function<void(RankContext&, Three&, Optimizer&)>& f) {
    const auto [ranks, strategy, compute] = GetParam();
    launch(ranks, [&, strategy = strategy, compute = compute](RankContext& r) {
      Three model;
      const Routing routing = model.routed();
      fully_shard(model, mesh_of(r), {.strategy = strategy, .compute_dtype = compute});
      Optimizer optimizer(model, routing, Three::options());
      f(r, model, optimizer);
    });
  }
};

TEST_P(OwnOptimizer, UpdatesTheParametersThatAreRoutedToIt) {
  on_ranks([](RankContext& r, Three& model, Optimizer& optimizer) {
    Stream& s = r.device->compute();
    std::vector<float> w = whole(model.own, model.own.shard(), s), m(w.size(), 0);
    for (int step = 0; step < 3; ++step) {
      const std::vector<float> g = GivenGradients::gradient(static_cast<int64_t>(w.size()), step);
      for (size_t i = 0; i < w.size(); ++i) {
        m[i] += (1 - kMomentum) * (g[i] - m[i]);
        w[i] = static_cast<float>(1 - kRuleLr * kRuleDecay) * w[i] - static_cast<float>(kRuleLr) * m[i];
      }
      model.train(optimizer, kRuleLr);
    }
    const auto got = whole(model.own, model.own.shard(), s);
    // Three ranks' average of equal gradients rounds; so may a fused multiply-add.
    for (size_t i = 0; i < w.size(); ++i) EXPECT_NEAR(got[i], w[i], 1e-6) << i;
    std::vector<std::string> keys;
    for (auto& t : optimizer.state()) keys.push_back(t.param.name() + " " + t.key);
    EXPECT_THAT(keys, ElementsAre("gain.weight exp_avg", "gain.weight exp_avg_sq",
                                  "hidden.weight momentum_buffer", "own.weight momentum"));
    EXPECT_NE(dynamic_cast<Sgd*>(&optimizer.rule(Sgd::kName)), nullptr);
    EXPECT_EQ(&optimizer.rule(Algorithm::muon), &optimizer.muon());
  });
}

TEST_P(OwnOptimizer, SkipsTheStepsThatTheOthersSkip) {
  on_ranks([](RankContext& r, Three& model, Optimizer& optimizer) {
    Stream& s = r.device->compute();
    const bool last_rank = r.world->rank() + 1 == r.world->size();
    model.train(optimizer, kRuleLr);
    const std::vector<float> before = everything(model, optimizer, s);
    model.train(optimizer, kRuleLr, last_rank);
    EXPECT_TRUE(same_bits(everything(model, optimizer, s), before));
    EXPECT_EQ(optimizer.skipped(), 1);
    model.train(optimizer, kRuleLr);
    EXPECT_FALSE(same_bits(everything(model, optimizer, s), before));
    EXPECT_EQ(optimizer.skipped(), 1);
  });
}

TEST_P(OwnOptimizer, LeavesTheModelTheLatestWeightsRounded) {
  on_ranks([](RankContext& r, Three& model, Optimizer& optimizer) {
    Stream& s = r.device->compute();
    Unit& unit = *runtime_of(model).units().back();
    for (int step = 0; step < 2; ++step) {
      model.train(optimizer, kRuleLr);
      const auto master = whole(model.own, model.own.shard(), s);
      unit.unshard();
      unit.wait();
      const auto used = ops::to_floats(s, model.own.data());
      unit.reshard();
      const bool rounds = std::get<DType>(GetParam()) == DType::bf16;
      for (size_t i = 0; i < used.size(); ++i)
        EXPECT_EQ(used[i], rounds ? float(bf16(master[i])) : master[i]) << step << " " << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, OwnOptimizer,
                         ::testing::Combine(::testing::Values(1, 3, 4),
                                            ::testing::Values(Strategy::no_shard, Strategy::optim,
                                                              Strategy::optim_grads_params),
                                            ::testing::Values(DType::f32, DType::bf16)));

TEST(OwnOptimizerRouting, IsByNameAndShowsInTableAndSummary) {
  Three model;
  const Routing r = model.routed();
  std::map<std::string, Algorithm> got;
  for (auto& route : r.routes) got[route.name] = route.algorithm;
  EXPECT_EQ(got["hidden.weight"], Algorithm::muon);
  EXPECT_EQ(got["own.weight"], Sgd::kName);
  EXPECT_EQ(got["gain.weight"], Algorithm::adamw);
  EXPECT_EQ(r.summary(), "muon: hidden.weight; adamw: gain.weight; sgd: own.weight");
  EXPECT_THAT(r.format(), HasSubstr("AdamW updates 5 elements, Muon 24, sgd 21"));
  EXPECT_EQ(model.own.cut(), CutClass::element);
  EXPECT_EQ(model.hidden.cut(), CutClass::row);

  Three all;
  for (auto& route : route(all, {.optimizer = Sgd::kName}).routes) {
    EXPECT_EQ(route.algorithm, Sgd::kName);
    EXPECT_EQ(route.reason, "sgd for all");
  }
}

// Shampoo, SOAP and the like: routing treats them as it treats Muon.
TEST(OwnOptimizerRouting, GivesOneForMatricesOnlyTheHiddenMatrices) {
  constexpr Algorithm soap("soap", CutClass::row, true);
  Three model;
  std::map<std::string, Algorithm> got;
  for (auto& r : route(model, {.optimizer = soap}).routes) got[r.name] = r.algorithm;
  EXPECT_EQ(got["hidden.weight"], soap);
  EXPECT_EQ(got["gain.weight"], Algorithm::adamw);
  EXPECT_EQ(model.hidden.cut(), CutClass::row);
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                (void)route(model, {.optimizer = Algorithm::adamw,
                                    .rules = {{.pattern = "gain", .algorithm = soap}}});
              }),
              AllOf(HasSubstr("gain"), HasSubstr("to soap, which updates matrices")));
}

TEST(OwnOptimizerMisuse, NamesThatCannotBeAreRefused) {
  for (const std::string name : {"", "S G D", "Sgd", "a_name_that_is_longer_than_31_chars"})
    EXPECT_THROW(Algorithm{name}, InvalidArgument) << name;
  const std::string longest(31, 'a');
  EXPECT_EQ(name_of(Algorithm(longest)), longest);
  EXPECT_EQ(Algorithm(), Algorithm::adamw);
}

TEST(OwnOptimizerMisuse, RoutesWithoutARuleAndMissingPartsAreAllNamed) {
  launch(1, [](RankContext& r) {
    Three model;
    const Routing routing = model.routed();
    fully_shard(model, mesh_of(r));
    const auto refusal = [&](const OptimizerOptions& o) -> std::string {
      return message_of<InvalidArgument>([&] { Optimizer(model, routing, o); });
    };
    EXPECT_THAT(refusal({}), AllOf(HasSubstr("own.weight (sgd)"), HasSubstr("OptimizerOptions::further")));
    UpdateRuleFactory nobody = Sgd::factory(2);
    nobody.make = nullptr;
    EXPECT_THAT(refusal({.further = {nobody, Sgd::factory(0.5f)}}),
                AllOf(HasSubstr("sgd: momentum 2 must lie in [0, 1)"), HasSubstr("two optimizers have: sgd"),
                      HasSubstr("nothing makes (UpdateRuleFactory::make is empty): sgd")));
    Optimizer optimizer(model, routing, Three::options());
    EXPECT_THROW(optimizer.rule(Algorithm("soap")), InvalidArgument);
  });
}

TEST(OwnOptimizerMisuse, DifferentSettingsOfRanksAreReported) {
  launch(2, [](RankContext& r) {
    Three model;
    const Routing routing = model.routed();
    fully_shard(model, mesh_of(r));
    const float mu = r.world->rank() == 0 ? 0.5f : 0.75f;
    EXPECT_THROW(Optimizer(model, routing, {.further = {Sgd::factory(mu)}}), ShapeMismatch);
  });
}

}  // namespace
}  // namespace sherd::test
