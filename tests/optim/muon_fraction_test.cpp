// Muon of a part of the rows: the rule of Dion2 in double, and the bits of one rank on any ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <sherd/fsdp/weights_change.h>
#include <sherd/optim/muon.h>
#include <sherd/optim/normuon.h>

#include "optim/double_matrices.h"
#include "optim/whole_tensors.h"

#include "support/pieces.h"

namespace sherd::test {
namespace {

using ::testing::HasSubstr;

constexpr int kFractionSteps = 6;

/// Gradients of few bits: an average over up to 6 equal ones is exact.
float made_gradient(size_t i, int step) {
  return static_cast<float>(
             static_cast<int>(i * i * 37 + i * 11 + static_cast<size_t>(step) * (29 + 7 * (i % 5))) % 61 -
             30) /
         64;
}

struct FractionModel : MadeGradients {
  FractionModel() {
    for (const auto& [name, shape] : {std::pair<const char*, Shape>{"tall", {11, 3}},
                                      {"wide", {6, 9}},
                                      {"fused", {8, 5}},
                                      {"stack", {3, 4, 4}},
                                      {"row", {1, 6}}})
      param(name, shape, normal(0.1f)).set_cut(CutClass::row);
    own_parameters()[2].set_row_blocks({5, 3});
  }
  int step = 0;
  void put_gradients() override {
    for (auto& p : own_parameters()) {
      if (p.frozen()) continue;
      std::vector<float> g(static_cast<size_t>(p.numel()));
      for (size_t i = 0; i < g.size(); ++i) g[i] = made_gradient(i, step);
      ops::copy_from_host(p.grad().device().compute(), p.grad(), g.data(), p.grad().nbytes());
    }
  }
};

struct FractionRun {
  int ranks = 1, replicas = 1;
  FullyShardOptions shard = {};
  MuonOptions muon = {.fraction = 0.25};
};

/// Weights and momentum of every parameter, after each step.
std::vector<std::vector<float>> trained_in_part(const FractionRun& run) {
  std::vector<std::vector<float>> all;
  launch(run.ranks, [&](RankContext& r) {
    FractionModel model;
    fully_shard(model,
                run.replicas == 1
                    ? mesh_of(r)
                    : DeviceMesh(r.world, {{"replicate", run.replicas}, {"shard", run.ranks / run.replicas}}),
                run.shard);
    std::vector<UpdateItem> items;
    for (auto& p : model.own_parameters()) items.push_back({p, 0.1});
    Muon rule(*r.device, items, run.muon);
    Stream& s = r.device->compute();
    std::vector<std::vector<float>> mine;
    for (model.step = 0; model.step < kFractionSteps; ++model.step) {
      run_pass(model, Tensor::empty(*r.device, {1}, DType::f32, "test"));
      WeightsChange change(runtime_of(model));
      rule.step(s, 0.02);
      change.end();
      for (auto& p : model.own_parameters()) mine.push_back(whole(p, p.shard(), s));
      for (auto& state : rule.state()) mine.push_back(whole(state.param, state.local, s));
    }
    if (r.world->rank() == 0) all = std::move(mine);
  });
  return all;
}

TEST(MuonFraction, IsTheRuleInDouble) {
  // Dion2 with its momentum times 0.05: the scale of torch.optim.Muon, which orthogonalization removes.
  constexpr double kMomentum = 0.95, kRate = 0.02, kDecay = 0.1;
  constexpr size_t kRows = 6, kCols = 9, kKept = 2;  // ceil(6 / 4)
  for (const bool nesterov : {false, true}) {
    FractionRun run;
    run.muon.nesterov = nesterov;
    const auto got = trained_in_part(run);
    // The weights are compared from step 1 on, which begins with those after step 0.
    Doubles momentum(kRows * kCols, 0), weight;
    for (int step = 0; step < kFractionSteps; ++step) {
      const auto& w = got[static_cast<size_t>(step) * 10 + 1];
      const auto& buffer = got[static_cast<size_t>(step) * 10 + 6];
      Doubles input(momentum.size());
      for (size_t i = 0; i < momentum.size(); ++i) {
        const double g = made_gradient(i, step);
        momentum[i] += (1 - kMomentum) * g;
        input[i] = nesterov ? g + kMomentum * (momentum[i] - g) : momentum[i];
      }
      Doubles norms(kRows, 0);
      for (size_t i = 0; i < input.size(); ++i) norms[i / kCols] += std::abs(input[i]);
      std::vector<size_t> rows(kRows);
      std::iota(rows.begin(), rows.end(), 0);
      std::stable_sort(rows.begin(), rows.end(), [&](size_t a, size_t b) { return norms[a] > norms[b]; });
      rows.resize(kKept);
      std::sort(rows.begin(), rows.end());
      Doubles chosen;
      for (const size_t r : rows)
        chosen.insert(chosen.end(), input.begin() + static_cast<long>(r * kCols),
                      input.begin() + static_cast<long>((r + 1) * kCols));
      const Doubles o = newton_schulz(chosen, kKept, kCols);
      Doubles update(momentum.size(), 0);
      for (size_t k = 0; k < kKept; ++k)
        for (size_t c = 0; c < kCols; ++c) {
          update[rows[k] * kCols + c] = 0.2 * std::sqrt(9.0) * o[k * kCols + c];
          momentum[rows[k] * kCols + c] *= kMomentum;
        }
      for (size_t i = 0; i < momentum.size(); ++i) {
        // Sums of 6 steps in f32, of values below 1: some 1e-7. Newton-Schulz multiplies them by at most 3.4^5.
        EXPECT_NEAR(buffer[i], momentum[i] / kMomentum, 1e-6) << step << " " << i;
        if (weight.empty()) continue;
        EXPECT_NEAR(w[i], (1 - kRate * kDecay) * weight[i] - kRate * update[i], 1e-5) << step << " " << i;
      }
      weight.assign(w.begin(), w.end());
    }
  }
}

TEST(MuonFraction, HasTheBitsOfOneRank) {
  for (const DType payload : {DType::f32, DType::bf16}) {
    FractionRun one;
    one.muon.payload = payload;
    const auto want = trained_in_part(one);
    for (const int ranks : {2, 3, 4, 5, 6})
      for (const Strategy strategy : kEveryStrategy)
        for (const LayoutPolicy layout :
             {LayoutPolicy::ragged, LayoutPolicy::even_rows, LayoutPolicy::whole_param})
          for (const MatrixMode mode : {MatrixMode::automatic, MatrixMode::owner, MatrixMode::gather}) {
            FractionRun run{.ranks = ranks, .shard = {.strategy = strategy, .layout = layout}};
            run.muon.payload = payload;
            run.muon.mode = mode;
            run.muon.allow_inexact = true;  // gram entries need all rows: none is made
            run.muon.transient_bytes = 4096;
            EXPECT_TRUE(same_bits(trained_in_part(run), want))
                << ranks << " ranks, " << name_of(strategy) << ", " << name_of(layout) << ", "
                << name_of(mode);
          }
  }
}

TEST(MuonFraction, ReplicasChangeNoBit) {
  const auto want = trained_in_part({});
  for (const auto& [ranks, replicas] : {std::pair(4, 2), {6, 2}, {6, 3}})
    EXPECT_TRUE(same_bits(trained_in_part({.ranks = ranks, .replicas = replicas}), want)) << ranks;
}

TEST(MuonFraction, OfOneIsMuonInBitsAndAllButTheLastRowIsNot) {
  FractionRun whole_matrix, default_options;
  whole_matrix.muon.fraction = 1;
  default_options.muon = {};
  EXPECT_TRUE(same_bits(trained_in_part(whole_matrix), trained_in_part(default_options)));
  FractionRun most;
  most.muon.fraction = 0.99;  // 6 of 6 rows: the same rows, and momentum that decays in all of them
  EXPECT_TRUE(same_bits(trained_in_part(most), trained_in_part(default_options)));
  most.muon.fraction = 0.8;
  EXPECT_FALSE(same_bits(trained_in_part(most), trained_in_part(default_options)));
}

/// Weights of Pieces, which tensor and expert parallelism cut, by name.
std::map<std::string, std::vector<float>> pieces_in_part(const Spread& spread) {
  std::map<std::string, std::vector<float>> weights;
  std::mutex mutex;
  launch(spread.ranks(), [&](RankContext& r) {
    Pieces model(r, spread);
    std::vector<UpdateItem> items;
    for (auto& [name, p] : model.named_parameters()) {
      if (p.shape().size() < 2) continue;
      Parameter param = p;
      param.set_cut(CutClass::row);
      items.push_back({param, 0.1});
    }
    model.wrap();
    Muon rule(*r.device, items, {.fraction = 0.5});
    Stream& s = r.device->compute();
    for (int step = 0; step < 3; ++step) {
      model.run(*r.device);
      WeightsChange change(runtime_of(model));
      rule.step(s, 0.02);
      change.end();
    }
    for (auto& item : items) {
      const Parameter& p = item.param;
      const std::vector<float> local = ops::to_floats(s, p.dtensor().full_tensor(s));
      const std::lock_guard lock(mutex);
      std::vector<float>& w = weights[p.name()];
      w.resize(static_cast<size_t>(numel_of(p.global_shape())), NAN);
      for (auto& piece : p.global_runs({ParamIndex(0), ParamIndex(p.numel())}))
        std::copy_n(local.begin() + piece.local.value, piece.count, w.begin() + piece.global.value);
    }
  });
  return weights;
}

TEST(MuonFraction, TensorPartsAndExpertsHaveTheBitsOfOneRank) {
  const auto one = pieces_in_part({});
  ASSERT_EQ(one.size(), 4u);
  for (const Spread& spread : std::vector<Spread>{{.tp = 2},
                                                  {.tp = 4, .experts = 4},
                                                  {.shard = 2, .tp = 2, .experts = 2},
                                                  {.replicas = 2, .shard = 2, .tp = 2, .experts = 2},
                                                  {.shard = 4, .experts = 2}})
    for (const auto& [name, values] : pieces_in_part(spread))
      EXPECT_TRUE(same_bits(values, one.at(name))) << spread.shard << " x " << spread.tp << " " << name;
}

TEST(MuonFraction, SkippedStepsAndFrozenMatricesLeaveWeightsAndMomentumInBits) {
  launch(2, [](RankContext& r) {
    FractionModel model;
    fully_shard(model, mesh_of(r));
    std::vector<UpdateItem> items;
    for (auto& p : model.own_parameters()) items.push_back({p, 0.1});
    Muon rule(*r.device, items, {.fraction = 0.25});
    Stream& s = r.device->compute();
    const Tensor skip = Tensor::empty(*r.device, {1}, DType::i64, "test");
    const auto values = [&](size_t param) {
      return std::vector{ops::to_floats(s, model.own_parameters()[param].shard()),
                         ops::to_floats(s, rule.state()[param].local)};
    };
    const auto step = [&](int64_t skipped) {
      ops::fill(s, skip, static_cast<double>(skipped));
      run_pass(model, Tensor::empty(*r.device, {1}, DType::f32, "test"));
      WeightsChange change(runtime_of(model));
      rule.step(s, 0.02, skip);
      change.end();
      ++model.step;
    };
    step(0);
    std::vector<std::vector<std::vector<float>>> before;
    for (size_t p = 0; p < 5; ++p) before.push_back(values(p));
    step(1);
    for (size_t p = 0; p < 5; ++p) EXPECT_TRUE(same_bits(values(p), before[p])) << p;
    runtime_of(model).set_frozen({model.own_parameters()[0]}, true);
    step(0);
    EXPECT_TRUE(same_bits(values(0), before[0]));
    bool changed = false;  // this rank holds nothing of some
    for (size_t p = 1; p < 5; ++p) changed = changed || !same_bits(values(p), before[p]);
    EXPECT_TRUE(changed);
  });
}

TEST(MuonFraction, WhatDoesNotFitIsRefused) {
  const auto problems = [](const MuonOptions& o) { return problems_of(o); };
  EXPECT_THAT(problems({.fraction = 0}), ::testing::ElementsAre(HasSubstr("fraction 0 must lie in (0, 1]")));
  EXPECT_THAT(problems({.fraction = NAN}), ::testing::ElementsAre(HasSubstr("must lie in (0, 1]")));
  EXPECT_THAT(problems({.fraction = 0.5, .mode = MatrixMode::gram}),
              ::testing::ElementsAre(HasSubstr("fraction 0.5 needs whole matrices")));
  EXPECT_THAT(problems({.fraction = 0.5, .tensor = MatrixTensorMode::distributed}),
              ::testing::ElementsAre(HasSubstr("fraction 0.5 needs whole matrices")));
  EXPECT_THAT(problems({.momentum = 0, .fraction = 0.5}),
              ::testing::ElementsAre(HasSubstr("momentum, which must be greater than 0")));
  EXPECT_THAT(problems_of(NorMuonOptions{.muon = {.fraction = 0.5}}),
              ::testing::ElementsAre(HasSubstr("fraction 0.5 must be 1")));
  EXPECT_EQ(kept_rows(0.25, 6), 2);
  EXPECT_EQ(kept_rows(0.1, 10), 1);
  EXPECT_EQ(kept_rows(1e-9, 3), 1);
  EXPECT_EQ(kept_rows(1, 7), 7);
}

}  // namespace
}  // namespace sherd::test
