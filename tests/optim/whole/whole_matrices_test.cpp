// A rule of the program's own over shards: the bits of one rank on any ranks, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <sherd/fsdp/weights_change.h>
#include <sherd/optim/whole_matrices.h>

#include "optim/whole_tensors.h"

#include "support/message_of.h"
#include "support/toy_model.h"

namespace sherd::test {
namespace {

using ::testing::HasSubstr;

/// x / (1 + (largest element + sum of all)^2): every element of the result depends on the whole matrix.
struct WholeRule : MatrixRule {
  explicit WholeRule(std::string words = "by the largest") : words_(std::move(words)) {}
  std::string name() const override { return "Whole"; }
  std::string settings() const override { return words_; }
  double matrix_flops(int64_t rows, int64_t cols) const override {
    return static_cast<double>(3 * rows * cols);
  }
  double scale(int64_t rows, int64_t) const override { return 1.0 / static_cast<double>(rows); }
  void compute(Stream& s, const Tensor& out, const Tensor& in, const Tensor&) override {
    s.submit("whole", [=](ExecutionContext&) {
      const int64_t n = in.size(1) * in.size(2);
      for (int64_t at = 0; at < in.numel(); at += n) {
        const float *x = in.data<float>() + at, sum = std::accumulate(x, x + n, 0.0f);
        const float largest = *std::max_element(x, x + n) + sum;
        for (int64_t i = 0; i < n; ++i) out.data<float>()[at + i] = x[i] / (1 + largest * largest);
      }
    });
  }
  std::string words_;
};

/// Errors of a rule, each in one matrix at one step: a call of compute() of the rank that computes it.
enum class Fault { none, bad_result, bad_state, wrong_shape };

/// The input, and a state that counts the calls.
struct FaultyRule : MatrixRule {
  FaultyRule(Fault fault, bool has_state) : fault_(fault), has_state_(has_state) {}
  std::string name() const override { return "Faulty"; }
  std::string settings() const override { return "none"; }
  double matrix_flops(int64_t rows, int64_t cols) const override { return static_cast<double>(rows * cols); }
  std::vector<MatrixStateSpec> state(int64_t, int64_t) const override {
    return has_state_ ? std::vector<MatrixStateSpec>{{"count", {1}}} : std::vector<MatrixStateSpec>{};
  }
  void compute(Stream& s, const Tensor& out, const Tensor& in, const Tensor& status) override {
    compute_with_state(s, out, in, status, {});
  }
  void compute_with_state(Stream& s, const Tensor& out, const Tensor& in, const Tensor&,
                          const std::vector<MatrixState>& states) override {
    ops::copy(s, out, in);
    for (const MatrixState& state : states) ops::fill(s, state.tensors[0], 1);
    if (in.size(1) != 2 || ++calls_ != 3) return;  // `wide` has two rows
    if (fault_ == Fault::bad_result) ops::fill(s, out.flat(4, 5), NAN);
    if (fault_ == Fault::bad_state) ops::fill(s, states[0].tensors[0], INFINITY);
    if (fault_ == Fault::wrong_shape) ops::copy(s, out.flat(0, 3), in.flat(0, 4));
  }
  Fault fault_;
  bool has_state_;
  int calls_ = 0;
};

struct WholeModel : MadeGradients {
  WholeModel() {
    for (const auto& [name, shape] : {std::pair<const char*, Shape>{"tall", {11, 3}},
                                      {"wide", {2, 9}},
                                      {"fused", {8, 5}},
                                      {"stack", {3, 4, 4}},
                                      {"row", {1, 6}}})
      param(name, shape, normal(0.1f)).set_cut(CutClass::row);
    own_parameters()[2].set_row_blocks({5, 3});
  }
  int step = 0;
  bool bad = false;  // NaN in one element of each gradient
  void put_gradients() override {
    for (auto& p : own_parameters()) {
      std::vector<float> g(static_cast<size_t>(p.numel()));
      for (size_t i = 0; i < g.size(); ++i)
        g[i] = std::sin(0.37f * static_cast<float>(i * i % 101) + static_cast<float>(step));
      if (bad) g[1] = NAN;
      const Tensor grad = p.grad();
      Stream& stream = grad.device().compute();
      const Tensor mine = Tensor::empty(grad.device(), grad.shape(), DType::f32, "test");
      ops::copy_from_host(stream, mine, g.data(), grad.nbytes());
      ops::scaled_add(stream, grad, 1, mine);
    }
  }
};

std::vector<UpdateItem> items_of(WholeModel& model) {
  std::vector<UpdateItem> items;
  for (auto& p : model.own_parameters()) items.push_back({p, 0.1});
  return items;
}

// Averages over 1, 2 and 4 ranks of equal gradients are these gradients.
std::vector<std::vector<float>> trained(int ranks, const FullyShardOptions& shard, MatrixMode mode,
                                        DType payload) {
  std::vector<std::vector<float>> weights;
  launch(ranks, [&](RankContext& r) {
    WholeModel model;
    fully_shard(model, DeviceMesh(r.world, {{"shard", ranks}}), shard);
    WholeMatrices rule(*r.device, items_of(model), std::make_shared<WholeRule>(),
                       {.mode = mode, .payload = payload, .transient_bytes = 4096});
    const Tensor x = Tensor::empty(*r.device, {1}, DType::f32, "test");
    Stream& s = r.device->compute();
    for (model.step = 0; model.step < 5; ++model.step) {
      run_pass(model, x);
      WeightsChange change(runtime_of(model));
      rule.step(s, 0.02);
      change.end();
    }
    std::vector<std::vector<float>> mine;
    for (auto& p : model.own_parameters()) mine.push_back(whole(p, p.shard(), s));
    for (auto& state : rule.state()) mine.push_back(whole(state.param, state.local, s));
    if (r.world->rank() == 0) weights = std::move(mine);
  });
  return weights;
}

TEST(WholeMatrices, HaveTheBitsOfOneRank) {
  for (const DType payload : {DType::f32, DType::bf16}) {
    const auto one = trained(1, {}, MatrixMode::automatic, payload);
    for (const int ranks : {2, 4})
      for (const Strategy strategy : {Strategy::no_shard, Strategy::optim, Strategy::optim_grads_params})
        for (const LayoutPolicy layout :
             {LayoutPolicy::ragged, LayoutPolicy::even_rows, LayoutPolicy::whole_param})
          for (const MatrixMode mode : {MatrixMode::automatic, MatrixMode::owner, MatrixMode::gather})
            EXPECT_TRUE(
                same_bits(trained(ranks, {.strategy = strategy, .layout = layout}, mode, payload), one))
                << ranks << " ranks, " << name_of(strategy) << ", " << name_of(layout) << ", "
                << name_of(mode);
  }
}

// The error of the constructor on two ranks; `words`: settings of each rank's rule.
std::string refused(const MomentumOptions& options,
                    const std::array<const char*, 2>& words = {"same", "same"}) {
  return message_of<std::exception>([&] {
    launch(2, [&](RankContext& r) {
      WholeModel model;
      fully_shard(model, DeviceMesh(r.world, {{"shard", 2}}));
      const char* mine = words[static_cast<size_t>(r.world->rank())];
      WholeMatrices(*r.device, items_of(model), std::make_shared<WholeRule>(mine), options);
    });
  });
}

TEST(WholeMatrices, WhatDoesNotFitIsRefused) {
  EXPECT_THAT(refused({}, {"one", "another"}), HasSubstr("the ranks made different Whole plans"));
  EXPECT_THAT(refused({.mode = MatrixMode::gram}), HasSubstr("Whole mode gram"));
  EXPECT_THAT(refused({.momentum = 2, .transient_bytes = -1}),
              HasSubstr("Whole: momentum 2 must lie in [0, 1); transient_bytes -1"));
}

/// Returns the error that ends each rank's training; "" without one. `weights` are those of `wide` after each
/// step.
std::vector<std::string> endings(Fault fault, bool has_state,
                                 std::vector<std::vector<float>>* weights = nullptr, int bad_gradient = -1) {
  std::vector<std::string> said(3);
  try {
    launch(3, [&](RankContext& r) {
      const auto rank = static_cast<size_t>(r.world->rank());
      try {
        WholeModel model;
        fully_shard(model, DeviceMesh(r.world, {{"shard", 3}}));
        WholeMatrices rule(*r.device, items_of(model), std::make_shared<FaultyRule>(fault, has_state), {});
        const Tensor x = Tensor::empty(*r.device, {1}, DType::f32, "test");
        Stream& s = r.device->compute();
        for (model.step = 0; model.step < 6; ++model.step) {
          model.bad = model.step == bad_gradient;
          run_pass(model, x);
          WeightsChange change(runtime_of(model));
          rule.step(s, 0.02);
          change.end();
          s.synchronize();
          const auto wide = model.own_parameters()[1];
          if (weights && rank == 0)
            weights->push_back(whole(wide, wide.shard(), s));
          else if (weights)
            (void)whole(wide, wide.shard(), s);
          rule.require_sound();
        }
      } catch (const Error& e) {
        said[rank] = e.what();
        throw;
      }
    });
  } catch (const Error&) {
  }
  return said;
}

TEST(WholeMatrices, AnErrorOfTheRuleNamesMatrixStepAndRankOnEveryRank) {
  for (const auto& [fault, has_state, words] :
       {std::tuple(Fault::bad_result, false,
                   "the rule's result of wide is NaN or Inf although the input is finite"),
        {Fault::bad_result, true, "the rule's result of wide is NaN or Inf although the input is finite"},
        {Fault::bad_state, true, "the rule's state of wide is NaN or Inf"},
        {Fault::wrong_shape, false, "the rule failed for wide: copy"}}) {
    const std::vector<std::string> said = endings(fault, has_state);
    for (const std::string& text : said)
      EXPECT_THAT(text,
                  AllOf(HasSubstr("Faulty: step 3 of this optimizer"), HasSubstr(words), HasSubstr("rank")));
  }
  EXPECT_THAT(endings(Fault::none, true), ::testing::Each(::testing::IsEmpty()));
}

TEST(WholeMatrices, AResultOfNaNDoesNotReachTheWeights) {
  std::vector<std::vector<float>> weights;
  (void)endings(Fault::bad_result, false, &weights);
  ASSERT_GE(weights.size(), 2u);
  for (const auto& step : weights)
    for (const float w : step) ASSERT_TRUE(std::isfinite(w));
}

TEST(WholeMatrices, AGradientOfNaNIsNotAnErrorOfTheRule) {
  std::vector<std::vector<float>> weights;
  EXPECT_THAT(endings(Fault::none, false, &weights, 2), ::testing::Each(::testing::IsEmpty()));
  ASSERT_EQ(weights.size(), 6u);
  for (const float w : weights.back()) ASSERT_TRUE(std::isfinite(w));
}

}  // namespace
}  // namespace sherd::test
