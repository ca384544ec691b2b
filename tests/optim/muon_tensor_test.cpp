// Muon on matrices that tensor parallelism cuts, data parallelism shards on top, and on expert stacks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <mutex>

#include <sherd/fsdp/weights_change.h>

#include "support/pieces.h"

namespace sherd::test {
namespace {

using Whole = std::map<std::string, std::vector<float>>;

struct TensorRun {
  Spread spread;
  Strategy strategy = Strategy::optim_grads_params;
  MuonOptions muon;
  int steps = 5;
};

/// Whole weights after some steps of Muon on everything that is a matrix.
Whole train_tensors(const TensorRun& run) {
  Whole whole;
  std::mutex mutex;
  launch(run.spread.ranks(), [&](RankContext& r) {
    Pieces model(r, run.spread);
    std::vector<Muon::Item> items;
    for (auto& [name, p] : model.named_parameters()) {
      if (p.shape().size() < 2) continue;
      Parameter param = p;
      param.set_cut(CutClass::row);
      items.push_back({param, 0.1});
    }
    model.wrap({.strategy = run.strategy});
    Muon muon(*r.device, items, run.muon);
    ShardRuntime& runtime = runtime_of(model);
    Stream& s = r.device->compute();
    for (int step = 0; step < run.steps; ++step) {
      model.run(*r.device);
      WeightsChange change(runtime);
      muon.step(s, 0.02);
      change.end();
    }
    for (auto& item : items) {
      const Parameter& p = item.param;
      const std::vector<float> local = ops::to_floats(s, p.dtensor().full_tensor(s));
      const std::lock_guard lock(mutex);
      std::vector<float>& w = whole[p.name()];
      w.resize(static_cast<size_t>(numel_of(p.global_shape())), NAN);
      for (auto& piece : p.global_runs({ParamIndex(0), ParamIndex(p.numel())}))
        std::copy_n(local.begin() + piece.local.value, piece.count, w.begin() + piece.global.value);
    }
  });
  return whole;
}

double largest_relative_difference(const Whole& a, const Whole& b) {
  double worst = 0;
  for (auto& [name, x] : a) {
    const auto& y = b.at(name);
    double difference = 0, norm = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      difference += std::pow(double{x[i]} - double{y[i]}, 2);
      norm += std::pow(double{y[i]}, 2);
    }
    worst = std::max(worst, std::sqrt(difference / norm));
  }
  return worst;
}

const std::vector<Spread>& spreads() {
  static const std::vector<Spread> all = {{.tp = 2},
                                          {.tp = 4, .experts = 4},
                                          {.shard = 2, .tp = 2, .experts = 2},
                                          {.shard = 4, .tp = 2, .experts = 4},
                                          {.replicas = 2, .shard = 2, .tp = 2, .experts = 2},
                                          {.shard = 4, .experts = 2},
                                          {.replicas = 2, .tp = 4}};
  return all;
}

TEST(MuonTensorParallel, DuplicatedEqualsOneRankInBits) {
  for (const Strategy strategy : {Strategy::no_shard, Strategy::optim_grads, Strategy::optim_grads_params}) {
    const Whole one = train_tensors({});
    ASSERT_EQ(one.size(), 4u);
    for (const Spread& spread : spreads()) {
      for (const MuonMode mode : {MuonMode::automatic, MuonMode::owner, MuonMode::gather}) {
        TensorRun run{.spread = spread, .strategy = strategy};
        run.muon.mode = mode;
        const Whole many = train_tensors(run);
        for (auto& [name, w] : one) {
          EXPECT_EQ(std::memcmp(w.data(), many.at(name).data(), w.size() * sizeof(float)), 0)
              << name << " " << spread.replicas << " x " << spread.shard << " x " << spread.tp << " "
              << name_of(mode);
        }
      }
    }
  }
}

TEST(MuonTensorParallel, DistributedAgreesToRounding) {
  for (const IterationForm form : {IterationForm::standard, IterationForm::gram}) {
    TensorRun one;
    one.steps = 1;
    one.muon.orthogonalize.form = form;
    const Whole expected = train_tensors(one);
    for (const Spread& spread : spreads()) {
      TensorRun run = one;
      run.spread = spread;
      run.muon.tensor = MuonTensorMode::distributed;
      // Gram matrices of at most 8 x 8 whose sums round in another order, see muon_modes_test.cpp. The
      // weights are of size one and change by lr * 0.2 * sqrt(24) = 0.02, so that 1e-5 of them is 5e-4 of the
      // update.
      EXPECT_LE(largest_relative_difference(train_tensors(run), expected), 1e-5);
      run.muon.orthogonalize.restarts =
          form == IterationForm::gram ? std::vector<int>{1, 3} : std::vector<int>{};
      EXPECT_LE(largest_relative_difference(train_tensors(run), expected), 1e-5);
    }
  }
}

TEST(MuonTensorParallel, RanksWithOtherRestartsAreRefused) {
  launch(2, [](RankContext& r) {
    Pieces model(r, {.tp = 2});
    std::vector<Muon::Item> items;
    for (auto& [name, p] : model.named_parameters()) {
      if (p.shape().size() < 2) continue;
      Parameter param = p;
      param.set_cut(CutClass::row);
      items.push_back({param, 0.1});
    }
    model.wrap({});
    MuonOptions o;
    o.tensor = MuonTensorMode::distributed;
    o.orthogonalize.form = IterationForm::gram;
    o.orthogonalize.restarts = {2 + r.world->rank()};
    EXPECT_THROW(Muon(*r.device, items, o), ShapeMismatch);
  });
}

TEST(MuonTensorParallel, ScaleIsThatOfTheWholeMatrix) {
  // An orthogonalized [24, 5] block of 12 rows has Frobenius norm sqrt(5): the update's norm shows the scale.
  TensorRun run{.spread = {.tp = 2}, .steps = 1};
  TensorRun none = run;
  none.steps = 0;
  const Whole after = train_tensors(run), before = train_tensors(none);
  double squares = 0;
  for (size_t i = 0; i < 12 * 5; ++i) {
    const double change = double{after.at("qkv")[i]} - double{before.at("qkv")[i]} * (1 - 0.02 * 0.1);
    squares += change * change;
  }
  // Jordan's coefficients leave singular values between 0.7 and 1.2.
  const double unit = 0.02 * 0.2 * std::sqrt(12.0);
  EXPECT_GT(std::sqrt(squares), unit * 0.6 * std::sqrt(5.0));
  EXPECT_LT(std::sqrt(squares), unit * 1.3 * std::sqrt(5.0));
}

}  // namespace
}  // namespace sherd::test
