// What every rule of whole matrices promises, once for all of them: the bits of one rank on any ranks, and updates that are
// left out.
#include "optim/matrix_rules.h"

#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>

#include "support/message_of.h"

namespace sherd::test {
namespace {

class MatrixRules : public ::testing::TestWithParam<MatrixRuleRow> {
 protected:
  static UpdateRuleFactory factory(const MomentumOptions& o = {}) { return GetParam().factory(o); }
  /// The modes that compute whole matrices.
  static std::vector<MatrixMode> modes() {
    if (GetParam().has_state) return {MatrixMode::automatic, MatrixMode::owner};
    return {MatrixMode::automatic, MatrixMode::owner, MatrixMode::gather};
  }
};
INSTANTIATE_TEST_SUITE_P(Rules, MatrixRules, ::testing::ValuesIn(kMatrixRules),
                         [](const auto& rule) { return std::string(rule.param.name); });

// Modes, cuts and sizes of messages take turns: each strategy and layout meets all of them. Ranks by name, for what leaves out
// some.
void expect_bits_of_one_rank(const MatrixRuleRow& rule, const std::vector<MatrixMode>& modes,
                             const std::vector<int>& all_ranks) {
  const OwnedValues::Map one = trained(rule.factory({}));
  ASSERT_GT(one.size(), every_matrix().size()) << "no state";
  for (const int ranks : all_ranks) {
    size_t turn = static_cast<size_t>(ranks);
    for (const Strategy strategy : kEveryStrategy)
      for (const LayoutPolicy layout :
           {LayoutPolicy::ragged, LayoutPolicy::even_rows, LayoutPolicy::whole_param}) {
        MatrixRun run{.ranks = ranks, .shard = {.strategy = strategy, .layout = layout}};
        std::vector<MatrixMode> possible = modes;
        if (layout == LayoutPolicy::whole_param) possible.push_back(MatrixMode::local);
        const MatrixMode mode = possible[turn % possible.size()];
        if (mode != MatrixMode::local && turn % 4 < 2) run.cut = CutClass::element;
        const int64_t transient = std::array<int64_t, 4>{0, 4096, 1, int64_t{1} << 26}[turn % 4];
        EXPECT_EQ(other_bits(trained(rule.factory({.mode = mode, .transient_bytes = transient}), run), one),
                  "")
            << ranks << " ranks, " << name_of(strategy) << ", " << name_of(layout) << ", " << name_of(mode)
            << ", " << transient;
        ++turn;
      }
  }
}

TEST_P(MatrixRules, HasTheBitsOfOneRankInWeightsAndStateOf2To4Ranks) {
  expect_bits_of_one_rank(GetParam(), modes(), {2, 3, 4});
}

TEST_P(MatrixRules, HasTheBitsOfOneRankInWeightsAndStateOf5To8Ranks) {
  expect_bits_of_one_rank(GetParam(), modes(), {5, 6, 8});
}

TEST_P(MatrixRules, ReplicasCostsAndWeightsOfStateChangeNoBit) {
  const OwnedValues::Map one = trained(factory());
  for (const auto& [ranks, replicas] : {std::pair(4, 2), {6, 2}, {6, 3}, {8, 2}, {8, 4}, {8, 8}})
    for (const Outer outer : {Outer::no_shard, Outer::optim})
      for (const bool slow_network : {false, true}) {
        int copies = 0;
        MatrixRun run{.ranks = ranks, .replicas = replicas, .shard = {.outer = outer}};
        if (slow_network) run.cut = CutClass::element;
        run.look = [&](RankContext& r, UpdateRule& rule) {
          if (r.world->rank() == 0) copies = whole_matrices_of(rule).plans()[0].copies;
        };
        const UpdateRuleFactory f = factory({.costs = slow_network ? PlanCosts{1e15, 1} : PlanCosts{1, 1e15},
                                             .state_weight = slow_network ? 0.0 : 1.0});
        EXPECT_EQ(other_bits(trained(f, run), one), "")
            << ranks << " ranks, " << replicas << " replicas, " << name_of(outer) << ", " << slow_network;
        if (!GetParam().has_state && outer == Outer::no_shard && replicas == 4) {
          EXPECT_EQ(copies, slow_network ? 1 : 4);
        }
      }
}

TEST_P(MatrixRules, HalvesOfAGradientInTwoMicrobatchesAreTheGradient) {
  const OwnedValues::Map one = trained(factory());
  for (const Strategy strategy : kEveryStrategy)
    EXPECT_EQ(
        other_bits(trained(factory(), {.ranks = 4, .microbatches = 2, .shard = {.strategy = strategy}}), one),
        "")
        << name_of(strategy);
}

TEST_P(MatrixRules, SixteenBitPayloadsRoundAlikeInEveryMode) {
  for (const DType payload : {DType::bf16, DType::f16}) {
    const OwnedValues::Map one = trained(factory({.payload = payload}));
    EXPECT_NE(other_bits(one, trained(factory())), "") << "nothing is rounded";
    for (const MatrixMode mode : modes())
      for (const int ranks : {3, 4})
        EXPECT_EQ(other_bits(trained(factory({.mode = mode, .payload = payload}), {.ranks = ranks}), one), "")
            << name_of(mode) << " " << name_of(payload);
  }
}

TEST_P(MatrixRules, TensorPartsExpertsAndHeadsHaveTheBitsOfOneRank) {
  for (const bool heads : {false, true}) {
    const OwnedValues::Map one = trained_pieces(factory(), {}, heads);
    ASSERT_GT(one.size(), 4u) << "no state";
    for (const Spread& spread : kMatrixSpreads)
      for (const MatrixMode mode : modes())
        EXPECT_EQ(other_bits(trained_pieces(factory({.mode = mode}), spread, heads), one), "")
            << spread.replicas << " x " << spread.shard << " x " << spread.tp << ", " << name_of(mode);
  }
}

/// The weights that the model computes with, where the rule writes them: the master weights rounded once. Returns their number.
int expect_rounded_copies(const std::vector<Parameter>& parameters, Stream& s) {
  int count = 0;
  for (const Parameter& p : parameters) {
    if (!p.model_copy().defined()) continue;
    const std::vector<float> weights = ops::to_floats(s, p.shard()),
                             written = ops::to_floats(s, p.model_copy());
    for (size_t i = 0; i < weights.size(); ++i)
      EXPECT_EQ(written[i], float(bf16(weights[i]))) << p.name() << " " << i;
    count += static_cast<int>(weights.size());
  }
  return count;
}

TEST_P(MatrixRules, SkippedStepsAndFrozenMatricesLeaveWeightsCopiesAndStateInBits) {
  OwnedValues at[5];
  launch(3, [&](RankContext& r) {
    MatrixModel model;
    fully_shard(model, mesh_of(r), {.compute_dtype = DType::bf16});
    std::vector<UpdateItem> items = matrix_items(model);
    for (UpdateItem& item : items) item.writes_copy = true;
    const auto rule = factory().make(*r.device, items);
    Stream& s = r.device->compute();
    const Tensor skip = Tensor::empty(*r.device, {1}, DType::i64, "test");
    for (const int step : {0, 1, 2, 3}) {
      // The second is skipped, of gradients that are not finite; the first matrix is frozen in the last.
      if (step == 3) runtime_of(model).set_frozen({model.own_parameters()[0]}, true);
      model.change = [&](const Parameter&, std::vector<float>& g) {
        if (step == 1) g[0] = std::numeric_limits<float>::quiet_NaN();
      };
      ops::fill(s, skip, step == 1);
      run_pass(model, Tensor::empty(*r.device, {1}, DType::f32, "test"));
      update_by(*rule, model, skip);
      (void)expect_rounded_copies(model.own_parameters(), s);
      ++model.step;
      add_everything(at[step], model.own_parameters(), rule->state(), rule->owned_state(), s);
    }
  });
  EXPECT_EQ(other_bits(at[1].values(), at[0].values()), "");
  EXPECT_THAT(other_bits(at[2].values(), at[1].values()), HasSubstr("fused; "));
  const std::string trained_on = other_bits(at[3].values(), at[2].values());
  EXPECT_THAT(trained_on, HasSubstr("wide; "));
  for (const auto& [name, values] : at[3].values())
    if (name.substr(0, name.find(' ')) == "fused") {
      EXPECT_TRUE(same_bits(values, at[2].values().at(name))) << name;
    }
}

TEST_P(MatrixRules, AGradientFactorHasTheBitsOfScaledGradientsAndLeavesThem) {
  enum class Scaled { inside, before, never };
  for (const MatrixDecay decay : {MatrixDecay::decoupled, MatrixDecay::l2}) {
    const auto run = [&](Scaled scaled) {
      OwnedValues all;
      launch(3, [&](RankContext& r) {
        MatrixModel model;
        fully_shard(model, mesh_of(r));
        const auto rule = factory({.decay = decay}).make(*r.device, matrix_items(model));
        Stream& s = r.device->compute();
        const Tensor factor = Tensor::empty(*r.device, {1}, DType::f32, "test");
        ops::fill(s, factor, 0.3);
        for (model.step = 0; model.step < 3; ++model.step) {
          run_pass(model, Tensor::empty(*r.device, {1}, DType::f32, "test"));
          WeightsChange change(runtime_of(model));
          std::vector<std::vector<float>> gradients;
          for (const Parameter& p : model.own_parameters()) {
            gradients.push_back(ops::to_floats(s, p.grad_shard()));
            if (scaled == Scaled::before) ops::scale_by(s, p.grad_shard(), factor);
          }
          if (scaled == Scaled::inside) rule->set_gradient_factor(factor);
          rule->step(s, kMatrixRate, {});
          for (size_t i = 0; scaled != Scaled::before && i < gradients.size(); ++i)
            EXPECT_EQ(ops::to_floats(s, model.own_parameters()[i].grad_shard()), gradients[i]);
          change.end();
        }
        add_everything(all, model.own_parameters(), rule->state(), rule->owned_state(), s);
      });
      return all.values();
    };
    const OwnedValues::Map inside = run(Scaled::inside);
    EXPECT_EQ(other_bits(inside, run(Scaled::before)), "") << name_of(decay);
    EXPECT_NE(other_bits(inside, run(Scaled::never)), "") << name_of(decay);
  }
}

TEST_P(MatrixRules, WritesTheModelsCopiesAsTheCastWould) {
  for (const Spread& spread : kMatrixSpreads)
    for (const Strategy strategy : {Strategy::no_shard, Strategy::optim, Strategy::optim_grads_params}) {
      std::atomic<int> copies = 0;
      launch(spread.ranks(), [&](RankContext& r) {
        Pieces model(r, spread);
        std::vector<UpdateItem> items = matrix_items(model);
        std::vector<Parameter> parameters;
        for (UpdateItem& item : items) {
          parameters.push_back(item.param.set_cut(CutClass::row));
          item.writes_copy = true;
        }
        model.wrap({.strategy = strategy, .compute_dtype = DType::bf16});
        const auto rule = factory().make(*r.device, items);
        Stream& s = r.device->compute();
        const Tensor skip = Tensor::empty(*r.device, {1}, DType::i64, "test");
        for (const int step : {0, 1, 2}) {
          model.run(*r.device);
          ops::fill(s, skip, step == 1);
          WeightsChange change(runtime_of(model));
          rule->step(s, kMatrixRate, skip);
          copies += expect_rounded_copies(parameters, s);
          change.end();
        }
      });
      EXPECT_GT(copies, 0) << name_of(strategy);
    }
}

TEST_P(MatrixRules, MatricesThatAreZeroOrNonFiniteKeepTheirWeightsAndOneRankReportsThem) {
  for (const int ranks : {1, 4}) {
    std::mutex mutex;
    std::map<std::string, std::vector<MatrixStatus>> found;
    MatrixRun run{.ranks = ranks, .steps = 2, .decay = 0};  // SOAP's first updates nothing
    run.change = [](const Parameter& p, std::vector<float>& g) {
      if (p.name() == "square") std::fill(g.begin(), g.end(), 0.0f);
      if (p.name() == "wide") g[5] = INFINITY;
      if (p.name() == "fused") g[1] = NAN;  // the first block alone
    };
    run.look = [&](RankContext&, UpdateRule& rule) {
      const auto report = whole_matrices_of(rule).report();
      const std::lock_guard lock(mutex);
      for (auto& [name, status] : report) found[name].push_back(status);
    };
    const OwnedValues::Map after = trained(factory(), run);
    EXPECT_THAT(found["wide"], ElementsAre(MatrixStatus::not_finite));
    EXPECT_THAT(found["fused 0"], ElementsAre(MatrixStatus::not_finite));
    for (const auto& [name, status] : found)
      EXPECT_TRUE(name == "wide" || name == "fused 0" || name == "square") << name;
    const OwnedValues::Map before = trained(factory(), {.steps = 0});
    for (const char* name : {"square", "wide"}) EXPECT_TRUE(same_bits(after.at(name), before.at(name)));
    const auto first = [](const std::vector<float>& fused) {
      return std::vector<float>(fused.begin(), fused.begin() + 5 * 8);
    };
    EXPECT_EQ(first(after.at("fused")), first(before.at("fused")));
    EXPECT_NE(after.at("fused"), before.at("fused"));
    for (const auto& d : every_matrix())
      for (const float v : after.at(d.name)) EXPECT_TRUE(std::isfinite(v)) << d.name;
  }
}

TEST_P(MatrixRules, EveryChunkIsTwoCollectivesOfItsMatrices) {
  // A matrix in four equal pieces: (P - 1) / P of it moves to its owner and back.
  static const DescribedMatrices five = {
      {"a", {16, 16}}, {"b", {16, 32}}, {"c", {16, 48}}, {"d", {16, 64}}, {"e", {16, 80}}};
  MatrixRun run{.ranks = 4, .shard = {.layout = LayoutPolicy::even_rows}, .model = &five};
  int64_t reductions[2] = {0, 0};
  for (const int steps : {1, 3}) {
    run.steps = steps;
    std::mutex mutex;
    int64_t bytes = 0;
    run.look = [&](RankContext& r, UpdateRule& rule) {
      const CommCounts counts = r.world->counts();
      EXPECT_EQ(counts.at("all_to_all_v").calls, 5 * 2 * steps);
      for (const auto& e : whole_matrices_of(rule).plans()[0].entries) EXPECT_EQ(e.mode, PlanMode::owner);
      const std::lock_guard lock(mutex);
      bytes += counts.at("all_to_all_v").bytes;
      if (r.world->rank() == 0)
        reductions[steps / 2] = counts.contains("all_reduce") ? counts.at("all_reduce").calls : 0;
    };
    (void)trained(factory({.mode = MatrixMode::owner, .transient_bytes = 1}), run);  // one matrix each
    EXPECT_EQ(bytes, 2 * steps * 16 * 240 * 4 * 3 / 4);
  }
  EXPECT_EQ(reductions[1] - reductions[0], GetParam().sums_rows ? 2 * 5 : 0)
      << "nothing but matrices is exchanged after the start";
}

TEST_P(MatrixRules, WhatRanksGiveOtherwiseOrIsImpossibleIsRefusedOnEveryRank) {
  const auto refused = [&](const MomentumOptions& o, const MomentumOptions& of_rank_1) {
    return message_of<Error>([&] {
      launch(2, [&](RankContext& r) {
        MatrixModel model;
        fully_shard(model, mesh_of(r));
        factory(r.world->rank() == 0 ? o : of_rank_1).make(*r.device, matrix_items(model));
      });
    });
  };
  EXPECT_THAT(refused({}, {.payload = DType::bf16}), HasSubstr("the ranks made different"));
  const MomentumOptions gram{.mode = MatrixMode::gram}, gather{.mode = MatrixMode::gather};
  EXPECT_THAT(refused(gram, gram), HasSubstr("gram"));
  if (GetParam().has_state) {
    EXPECT_THAT(refused(gather, gather), HasSubstr("gather computes a matrix on every rank"));
  }
  EXPECT_THAT(factory({.transient_bytes = -1}).problems, ElementsAre(HasSubstr("transient_bytes -1")));
}

TEST(MatrixRuns, LayoutsCutRowsAndLeaveRanksWithout) {
  int cut = 0, empty = 0;
  std::mutex mutex;
  launch(8, [&](RankContext& r) {
    MatrixModel model(every_matrix(), CutClass::element);
    fully_shard(model, mesh_of(r));
    const std::lock_guard lock(mutex);
    for (auto& p : model.own_parameters()) {
      const ParamRange range = p.shard_range();
      empty += range.empty();
      cut += !range.empty() && range.begin.value % p.shape().back() != 0;
    }
  });
  EXPECT_GT(cut, 0);
  EXPECT_GT(empty, 0);
}

}  // namespace
}  // namespace sherd::test
