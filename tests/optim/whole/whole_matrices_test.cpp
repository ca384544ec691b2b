// A rule of the program's own over shards: its errors, and what is refused.

#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "optim/matrix_rules.h"

#include "support/message_of.h"

namespace sherd::test {
namespace {

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
    if (in.size(1) != 3 || in.size(2) != 20 || ++calls_ != 3) return;  // `wide`
    if (fault_ == Fault::bad_result) ops::fill(s, out.flat(4, 5), NAN);
    if (fault_ == Fault::bad_state) ops::fill(s, states[0].tensors[0], INFINITY);
    if (fault_ == Fault::wrong_shape) ops::copy(s, out.flat(0, 3), in.flat(0, 4));
  }
  Fault fault_;
  bool has_state_;
  int calls_ = 0;
};

// The error of the constructor on two ranks; `words`: settings of each rank's rule.
std::string refused(const MomentumOptions& options,
                    const std::array<const char*, 2>& words = {"same", "same"}) {
  return message_of<std::exception>([&] {
    launch(2, [&](RankContext& r) {
      MatrixModel model;
      fully_shard(model, mesh_of(r));
      const char* mine = words[static_cast<size_t>(r.world->rank())];
      WholeMatrices(*r.device, matrix_items(model), std::make_shared<LargestRule>(mine), options);
    });
  });
}

TEST(WholeMatrices, WhatDoesNotFitIsRefused) {
  EXPECT_THAT(refused({}, {"one", "another"}), HasSubstr("the ranks made different Whole plans"));
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
        MatrixModel model;
        fully_shard(model, mesh_of(r));
        WholeMatrices rule(*r.device, matrix_items(model), std::make_shared<FaultyRule>(fault, has_state),
                           {});
        const Tensor x = Tensor::empty(*r.device, {1}, DType::f32, "test");
        Stream& s = r.device->compute();
        for (model.step = 0; model.step < 6; ++model.step) {
          model.change = [&](const Parameter&, std::vector<float>& g) {
            if (model.step == bad_gradient) g[1] = NAN;
          };
          run_pass(model, x);
          update_by(rule, model);
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
