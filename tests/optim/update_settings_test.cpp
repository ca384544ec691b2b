// Parameter groups: rules give some parameters their own learning rate, decay, betas and eps.

#include <cmath>
#include <map>

#include "support/message_of.h"
#include "support/sgd.h"
#include "support/toy_model.h"

namespace sherd::test {
namespace {

constexpr double kGroupLr = 0.125;

struct Five : GivenGradients {
  Five() {
    add("embed.weight", {7, 4});
    add("hidden.weight", {6, 4});
    add("other.weight", {4, 5});
    add("gain.weight", {5});
    add("late.weight", {9, 2});
  }
};

using Weights = std::map<std::string, std::vector<float>>;

Weights train(int ranks, Strategy strategy, DType compute, const std::vector<RoutingRule>& rules,
              const OptimizerOptions& options, double lr) {
  Weights result;
  launch(ranks, [&](RankContext& r) {
    Five model;
    const Routing routing = route(model, {.rules = rules});
    fully_shard(model, mesh_of(r), {.strategy = strategy, .compute_dtype = compute});
    Optimizer optimizer(model, routing, options);
    for (int step = 0; step < 3; ++step) model.train(optimizer, lr);
    for (auto& [name, p] : model.named_parameters()) {
      const auto w = ops::to_floats(r.device->compute(), p.dtensor().full_tensor(r.device->compute()));
      if (r.world->rank() == 0) result[name] = w;
    }
    EXPECT_EQ(optimizer.counters().size(), 3u) << "AdamW's, in routing order";
    for (auto& c : optimizer.counters()) EXPECT_EQ(ops::to_floats(r.device->compute(), c.value).front(), 3);
  });
  return result;
}

class ParameterGroups : public ::testing::TestWithParam<std::tuple<int, Strategy, DType>> {};

// Gradients do not follow from weights here, so that each parameter fares as if all had its settings.
TEST_P(ParameterGroups, UpdateTheirParametersAsIfTheSettingsWereEverybodys) {
  const auto [ranks, strategy, compute] = GetParam();
  const OptimizerOptions base{.weight_decay = 0.25};
  const std::vector<RoutingRule> rules = {
      {.pattern = "^embed",
       .algorithm = Algorithm::adamw,
       .settings = {.lr_factor = 0.5, .beta1 = 0.5, .eps = 1e-3}},
      {.pattern = "^hidden", .settings = {.lr_factor = 2, .weight_decay = 0}},
      {.pattern = "^gain", .settings = {.weight_decay = 0.5, .beta2 = 0.75}},
      {.pattern = "^late", .algorithm = Algorithm::adamw, .settings = {.lr_factor = 0.25}},
      {.pattern = "weight$", .settings = {.lr_factor = 0.25}}};  // other alone: the first match wins
  const Weights got = train(ranks, strategy, compute, rules, base, kGroupLr);
  const RoutingRule embed{.pattern = "^(embed|late)", .algorithm = Algorithm::adamw};
  const auto plain = [&, ranks = ranks, strategy = strategy, compute = compute](
                         const OptimizerOptions& options, double lr,
                         const std::vector<RoutingRule>& more = {}) {
    std::vector<RoutingRule> all = {embed};
    all.insert(all.end(), more.begin(), more.end());
    return train(ranks, strategy, compute, all, options, lr);
  };
  EXPECT_EQ(
      got.at("embed.weight"),
      plain({.adamw = {.beta1 = 0.5, .eps = 1e-3}, .weight_decay = 0.25}, kGroupLr / 2).at("embed.weight"));
  EXPECT_EQ(got.at("hidden.weight"), plain({}, 2 * kGroupLr).at("hidden.weight"));
  EXPECT_EQ(got.at("gain.weight"), plain({.adamw = {.beta2 = 0.75}}, kGroupLr,
                                         {{.pattern = "gain", .settings = {.weight_decay = 0.5}}})
                                       .at("gain.weight"));
  for (const char* name : {"other.weight", "late.weight"})
    EXPECT_EQ(got.at(name), plain(base, kGroupLr / 4).at(name)) << name;
  // A decay of its own is used where others do not decay.
  EXPECT_NE(got.at("gain.weight"), plain({.adamw = {.beta2 = 0.75}}, kGroupLr).at("gain.weight"));
}

INSTANTIATE_TEST_SUITE_P(Meshes, ParameterGroups,
                         ::testing::Combine(::testing::Values(1, 3, 4),
                                            ::testing::Values(Strategy::no_shard, Strategy::optim,
                                                              Strategy::optim_grads,
                                                              Strategy::optim_grads_params),
                                            ::testing::Values(DType::f32, DType::bf16)));

TEST(ParameterGroupsRouting, ShowInTheTableBesideRoleOrRule) {
  Five model;
  const Routing r = route(
      model, {.rules = {{.pattern = "^embed", .algorithm = Algorithm::adamw, .settings = {.lr_factor = 0.5}},
                        {.pattern = "^hidden", .settings = {.weight_decay = 0, .beta1 = {}}}}});
  EXPECT_THAT(r.format(),
              AllOf(HasSubstr("rule '^embed': lr x 0.5"), HasSubstr("rule '^hidden': weight decay 0")));
  EXPECT_EQ(r.routes[1].algorithm, Algorithm::muon) << "a rule without an optimizer leaves it to the role";
  EXPECT_EQ(r.routes[2].settings, UpdateSettings{});
}

TEST(ParameterGroupsMisuse, BadValuesAreAllNamedAtOnce) {
  Five model;
  EXPECT_THAT(
      message_of<Error>([&] {
        (void)route(
            model,
            {.rules = {{.pattern = "a", .settings = {.lr_factor = -1, .beta1 = 1}},
                       {.pattern = "b", .settings = {.weight_decay = NAN, .beta2 = -0.5, .eps = -2}}}});
      }),
      AllOf(HasSubstr("'a': lr_factor -1"), HasSubstr("beta1 1 "), HasSubstr("'b': weight decay nan"),
            HasSubstr("beta2 -0.5"), HasSubstr("eps -2")));
  EXPECT_THAT(message_of<Error>([&] {
                (void)route(model, {.rules = {{.pattern = "nobody", .settings = {.lr_factor = 2}}}});
              }),
              HasSubstr("decide about no parameter"));
}

TEST(ParameterGroupsMisuse, SettingsThatAnOptimizerDoesNotHeedAreRefused) {
  launch(1, [](RankContext& r) {
    Five model;
    const Routing routing = route(
        model, {.rules = {{.pattern = "^hidden", .settings = {.beta1 = 0.5}},
                          {.pattern = "^gain", .algorithm = Sgd::kName, .settings = {.lr_factor = 2}},
                          {.pattern = "^late", .algorithm = Sgd::kName, .settings = {.weight_decay = 2}}}});
    fully_shard(model, mesh_of(r));
    const std::string text =
        message_of<Error>([&] { Optimizer(model, routing, {.further = {Sgd::factory(0.5f)}}); });
    EXPECT_THAT(text, AllOf(HasSubstr("hidden.weight has its own betas or eps, which Muon does not heed"),
                            HasSubstr("gain.weight has a learning rate factor, which sgd does not heed")));
    EXPECT_THAT(text, ::testing::Not(HasSubstr("late.weight")));
  });
}

TEST(ParameterGroupsMisuse, DifferentSettingsOfRanksAreReported) {
  launch(2, [](RankContext& r) {
    Five model;
    const Routing routing =
        route(model,
              {.rules = {{.pattern = "^gain", .settings = {.lr_factor = r.world->rank() == 0 ? 2.0 : 3.0}}}});
    fully_shard(model, mesh_of(r));
    EXPECT_THROW(Optimizer(model, routing, {}), ShapeMismatch);
  });
}

}  // namespace
}  // namespace sherd::test
