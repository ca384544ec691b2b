// KL-SOAP over shards, and state of whole matrices: the bits of one rank on any ranks, skipped steps, refusals.
#include <sherd/optim/soap.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include <sherd/fsdp/weights_change.h>

#include "optim/whole_tensors.h"

#include "support/message_of.h"
#include "support/owned_values.h"
#include "support/pieces.h"

namespace sherd::test {
namespace {

using ::testing::HasSubstr;

/// Keys and values of heads, which tensor parallelism assigns whole.
RowBlocks key_value_heads(int64_t heads, int64_t key, int64_t value) {
  RowBlocks blocks;
  for (int64_t h = 0; h < heads; ++h) {
    const std::string head = "head" + std::to_string(h);
    const int64_t begin = h * (key + value);
    blocks.push_back({head + ".k", begin, key, 0, 1, true});
    blocks.push_back({head + ".v", begin + key, value, 0, 1, true});
  }
  return blocks;
}

/// Matrices with gradients of few bits: an average over up to 6 equal ones is exact.
struct SoapModel : MadeGradients {
  SoapModel() {
    for (const auto& [name, shape] : {std::pair<const char*, Shape>{"tall", {11, 3}},
                                      {"wide", {2, 9}},
                                      {"fused", {8, 5}},
                                      {"stack", {5, 4, 4}},
                                      {"heads", {10, 4}}})
      param(name, shape, normal(0.1f)).set_cut(CutClass::row);
    own_parameters()[2].set_row_blocks({5, 3});
    own_parameters()[4].set_row_blocks(key_value_heads(2, 2, 3));
  }
  int step = 0;
  void put_gradients() override {
    for (auto& p : own_parameters()) {
      if (p.frozen()) continue;
      std::vector<float> g(static_cast<size_t>(p.numel()));
      for (size_t i = 0; i < g.size(); ++i)
        g[i] = static_cast<float>(
                   static_cast<int>(i * i * 37 + i * 11 + static_cast<size_t>(step) * 29) % 61 - 30) /
               64;
      ops::copy_from_host(p.grad().device().compute(), p.grad(), g.data(), p.grad().nbytes());
    }
  }
};

struct SoapResult {
  std::vector<std::vector<float>> weights;
  OwnedValues::Map state;
};

struct SoapCase {
  int ranks = 1;
  FullyShardOptions shard = {};
  SoapOptions soap = {};
  int replicas = 1;
};

std::vector<UpdateItem> soap_items(ModuleBase& model) {
  std::vector<UpdateItem> items;
  for (auto& [name, p] : model.named_parameters()) {
    if (p.shape().size() < 2) continue;
    Parameter param = p;
    if (!param.sharded()) param.set_cut(CutClass::row);
    items.push_back({param, 0.1});
  }
  return items;
}

SoapResult trained_by_soap(const SoapCase& c) {
  SoapResult result;
  OwnedValues state;
  launch(c.ranks, [&](RankContext& r) {
    SoapModel model;
    const DeviceMesh mesh =
        c.replicas == 1 ? mesh_of(r)
                        : DeviceMesh(r.world, {{"replicate", c.replicas}, {"shard", c.ranks / c.replicas}});
    fully_shard(model, mesh, c.shard);
    Soap rule(*r.device, soap_items(model), c.soap);
    Stream& s = r.device->compute();
    for (model.step = 0; model.step < 4; ++model.step) {
      run_pass(model, Tensor::empty(*r.device, {1}, DType::f32, "test"));
      WeightsChange change(runtime_of(model));
      rule.step(s, 0.02);
      change.end();
    }
    EXPECT_TRUE(rule.state().empty()) << "no momentum";
    std::vector<std::vector<float>> mine;
    for (auto& p : model.own_parameters()) mine.push_back(whole(p, p.shard(), s));
    state.add(rule.owned_state(), s);
    if (r.world->rank() == 0) result.weights = std::move(mine);
  });
  result.state = state.values();
  return result;
}

bool same_state(const OwnedValues::Map& a, const OwnedValues::Map& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](auto& x, auto& y) { return x.first == y.first && same_bits(x.second, y.second); });
}

TEST(Soap, HasTheBitsOfOneRankInWeightsAndState) {
  const SoapResult one = trained_by_soap({});
  ASSERT_EQ(one.state.count("stack soap_left"), 1u);
  EXPECT_EQ(one.state.at("stack soap_left").size(), 5u * 4 * 4);
  EXPECT_EQ(one.state.at("fused soap_right_basis[1]").size(), 25u);
  EXPECT_EQ(one.state.at("heads soap_left[2x4]").size(), 2u * 2 * 2);
  EXPECT_EQ(one.state.at("heads soap_left[3x4]").size(), 2u * 3 * 3);
  for (const int ranks : {2, 3, 4, 5, 6})
    for (const Strategy strategy : kEveryStrategy)
      for (const LayoutPolicy layout :
           {LayoutPolicy::ragged, LayoutPolicy::even_rows, LayoutPolicy::whole_param})
        for (const MatrixMode mode : {MatrixMode::automatic, MatrixMode::owner}) {
          SoapCase c{.ranks = ranks, .shard = {.strategy = strategy, .layout = layout}};
          c.soap.whole = {.mode = mode, .transient_bytes = 4096};
          const SoapResult many = trained_by_soap(c);
          EXPECT_TRUE(same_bits(many.weights, one.weights) && same_state(many.state, one.state))
              << ranks << " ranks, " << name_of(strategy) << ", " << name_of(layout) << ", " << name_of(mode);
        }
}

TEST(Soap, ReplicasAndStateWeightsChangeNoBit) {
  const SoapResult one = trained_by_soap({});
  for (const auto& [ranks, replicas] : {std::pair(4, 2), {6, 2}, {6, 3}})
    for (const double weight : {0.0, 1.0}) {
      SoapCase c{.ranks = ranks, .replicas = replicas};
      c.soap.whole.state_weight = weight;
      const SoapResult many = trained_by_soap(c);
      EXPECT_TRUE(same_bits(many.weights, one.weights) && same_state(many.state, one.state))
          << ranks << " " << replicas;
    }
}

/// Weights and state of Pieces, which tensor and expert parallelism cut. `heads`: rows and fused rows are of heads.
std::pair<OwnedValues::Map, OwnedValues::Map> pieces_by_soap(const Spread& spread, bool heads = false) {
  OwnedValues state;
  OwnedValues::Map weights;
  std::mutex mutex;
  launch(spread.ranks(), [&](RankContext& r) {
    Pieces model(r, spread);
    if (heads) {
      model.own_parameters()[0].set_row_blocks(key_value_heads(4 / spread.tp, 2, 4));
      model.own_parameters()[1].set_row_blocks(head_blocks(4 / spread.tp, 2));
      model.own_parameters()[2].set_row_blocks(key_value_heads(1, 3, 4));
    }
    std::vector<UpdateItem> items = soap_items(model);
    model.wrap();
    Soap rule(*r.device, items, {});
    Stream& s = r.device->compute();
    for (int step = 0; step < 3; ++step) {
      model.run(*r.device);
      WeightsChange change(runtime_of(model));
      rule.step(s, 0.02);
      change.end();
    }
    state.add(rule.owned_state(), s);
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
  return {weights, state.values()};
}

TEST(Soap, TensorPartsAndExpertsHaveTheBitsOfOneRank) {
  const auto one = pieces_by_soap({});
  ASSERT_EQ(one.first.size(), 4u);
  for (const Spread& spread : std::vector<Spread>{{.tp = 2},
                                                  {.tp = 4, .experts = 4},
                                                  {.shard = 2, .tp = 2, .experts = 2},
                                                  {.replicas = 2, .shard = 2, .tp = 2, .experts = 2},
                                                  {.shard = 4, .experts = 2}}) {
    const auto many = pieces_by_soap(spread);
    EXPECT_TRUE(same_state(many.first, one.first)) << spread.shard << " x " << spread.tp;
    EXPECT_TRUE(same_state(many.second, one.second)) << spread.shard << " x " << spread.tp;
  }
}

TEST(Soap, HeadsThatTensorParallelismAssignsWholeHaveTheBitsOfOneRank) {
  const auto one = pieces_by_soap({}, true);
  EXPECT_EQ(one.second.at("qkv soap_left[2x5]").size(), 4u * 2 * 2);
  EXPECT_EQ(one.second.at("qkv soap_left[4x5]").size(), 4u * 4 * 4);
  EXPECT_EQ(one.second.at("rows soap_exp_avg[2x3]").size(), 4u * 2 * 3);
  EXPECT_EQ(one.second.at("columns soap_right[3x8]").size(), 8u * 8) << "heads whose columns are cut";
  for (const Spread& spread : std::vector<Spread>{{.tp = 2},
                                                  {.tp = 4, .experts = 4},
                                                  {.shard = 2},
                                                  {.shard = 2, .tp = 2, .experts = 2},
                                                  {.replicas = 2, .shard = 2, .tp = 2, .experts = 2},
                                                  {.shard = 2, .tp = 4}}) {
    const auto many = pieces_by_soap(spread, true);
    EXPECT_TRUE(same_state(many.first, one.first)) << spread.shard << " x " << spread.tp;
    EXPECT_TRUE(same_state(many.second, one.second)) << spread.shard << " x " << spread.tp;
  }
}

// Each tensor-parallel rank computes heads of its own, so each reports them.
TEST(Soap, NonFiniteHeadsAreReportedByTheRankThatHasThem) {
  struct Heads : MadeGradients {
    explicit Heads(const DeviceMesh& mesh) : index(mesh.coordinate("tp")) {
      param("heads", {4, 3}, normal(1)).set_cut(CutClass::row);
      own_parameters()[0].set_row_blocks(head_blocks(2, 2)).set_tensor_shard({"tp", 0, 2, index});
    }
    void put_gradients() override {
      std::vector<float> g(12, 1);
      if (index == 1) g[7] = NAN;
      const Tensor to = own_parameters()[0].grad();
      ops::copy_from_host(to.device().compute(), to, g.data(), to.nbytes());
    }
    int index;
  };
  std::vector<std::vector<std::pair<std::string, MatrixStatus>>> found(2);
  launch(2, [&](RankContext& r) {
    const DeviceMesh mesh(r.world, {{"shard", 1}, {"tp", 2}});
    Heads model(mesh);
    fully_shard(model, mesh);
    Soap rule(*r.device, soap_items(model), {});
    run_pass(model, Tensor::empty(*r.device, {1}, DType::f32, "test"));
    WeightsChange change(runtime_of(model));
    rule.step(r.device->compute(), 0.02);
    change.end();
    found[static_cast<size_t>(r.world->rank())] = rule.report();
  });
  EXPECT_TRUE(found[0].empty());
  ASSERT_EQ(found[1].size(), 1u);
  EXPECT_EQ(found[1][0].first, "heads head1 of tp 1");
  EXPECT_EQ(found[1][0].second, MatrixStatus::not_finite);
}

TEST(Soap, SkippedStepsAndFrozenMatricesLeaveWeightsAndStateInBits) {
  launch(2, [](RankContext& r) {
    SoapModel model;
    fully_shard(model, mesh_of(r));
    Soap rule(*r.device, soap_items(model), {});
    Stream& s = r.device->compute();
    const Tensor skip = Tensor::empty(*r.device, {1}, DType::i64, "test");
    const auto values = [&](size_t param) {
      std::vector<std::vector<float>> all = {ops::to_floats(s, model.own_parameters()[param].shard())};
      for (const OwnedState& state : rule.owned_state())
        if (state.param == model.own_parameters()[param]) all.push_back(ops::to_floats(s, state.local));
      return all;
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
    for (size_t p = 0; p < 4; ++p) before.push_back(values(p));
    step(1);
    for (size_t p = 0; p < 4; ++p) EXPECT_TRUE(same_bits(values(p), before[p])) << p;
    step(0);
    bool changed = false;  // this rank holds nothing of some
    for (size_t p = 0; p < 4; ++p) changed = changed || !same_bits(values(p), before[p]);
    EXPECT_TRUE(changed);
    const auto frozen = values(0), trained = values(3);
    runtime_of(model).set_frozen({model.own_parameters()[0]}, true);
    step(0);
    EXPECT_TRUE(same_bits(values(0), frozen));
    EXPECT_FALSE(same_bits(values(3), trained));
  });
}

/// A rule whose state is what the test says.
struct StatefulRule : MatrixRule {
  explicit StatefulRule(std::vector<MatrixStateSpec> specs) : specs_(std::move(specs)) {}
  std::string name() const override { return "Stateful"; }
  std::string settings() const override { return "none"; }
  double matrix_flops(int64_t, int64_t) const override { return 1; }
  std::vector<MatrixStateSpec> state(int64_t, int64_t) const override { return specs_; }
  std::vector<MatrixStateSpec> specs_;
};

std::string stateful_refused(const MomentumOptions& options, const std::vector<MatrixStateSpec>& first,
                             const std::vector<MatrixStateSpec>& second) {
  return message_of<std::exception>([&] {
    launch(2, [&](RankContext& r) {
      SoapModel model;
      fully_shard(model, mesh_of(r));
      const auto& specs = r.world->rank() == 0 ? first : second;
      WholeMatrices rule(*r.device, soap_items(model), std::make_shared<StatefulRule>(specs), options);
      run_pass(model, Tensor::empty(*r.device, {1}, DType::f32, "test"));
      WeightsChange change(runtime_of(model));
      rule.step(r.device->compute(), 0.1);
      change.end();
    });
  });
}

TEST(MatrixState, WhatDoesNotFitIsRefused) {
  const std::vector<MatrixStateSpec> good = {{"sum", {4}}};
  EXPECT_THAT(stateful_refused({.mode = MatrixMode::gather}, good, good),
              HasSubstr("gather computes a matrix on every rank"));
  EXPECT_THAT(stateful_refused({.mode = MatrixMode::gram}, good, good), HasSubstr("Stateful mode gram"));
  EXPECT_THAT(stateful_refused({.tensor = MatrixTensorMode::distributed}, good, good),
              HasSubstr("a rule with state needs whole matrices"));
  EXPECT_THAT(stateful_refused({.state_weight = 2}, good, good),
              HasSubstr("state_weight 2 must lie in [0, 1]"));
  EXPECT_THAT(stateful_refused({}, {{"a.b", {0}}}, {{"a.b", {0}}}),
              AllOf(HasSubstr("key 'a.b' must be a word"), HasSubstr("has shape [0]")));
  EXPECT_THAT(stateful_refused({}, good, {{"sum", {5}}}),
              AllOf(HasSubstr("the ranks made different Stateful plans"),
                    HasSubstr("the cost, scale or state of matrix tall differs")));
  EXPECT_THAT(stateful_refused({}, good, good), HasSubstr("Stateful has state() and does not override"));
}

TEST(Soap, InvalidOptionsAreListedTogether) {
  SoapOptions o{.constants = {.beta1 = 1, .eps = 0}, .max_dim = -1};
  const std::vector<std::string> wrong = problems_of(o);
  ASSERT_EQ(wrong.size(), 3u);
  EXPECT_THAT(wrong[0], HasSubstr("beta1 1 must lie in [0, 1)"));
  EXPECT_THAT(wrong[2], HasSubstr("max_dim -1 must lie in [0, 32000]"));
}

}  // namespace
}  // namespace sherd::test
