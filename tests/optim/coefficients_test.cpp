#include <sherd/base/error.h>
#include <sherd/kernels/device/device.h>
#include <sherd/kernels/ops.h>
#include <sherd/optim/muon/coefficients.h>

#include <cmath>

#include "support/message_of.h"

namespace sherd {
namespace {

/// Returns the result of the steps for one singular value.
double follow(const std::vector<Coefficients>& steps, double x) {
  for (auto& [a, b, c] : steps) x = a * x + b * std::pow(x, 3) + c * std::pow(x, 5);
  return x;
}

std::string message(std::string_view name, int steps = 0) {
  return message_of<InvalidArgument>([&] { (void)coefficient_steps(name, steps); });
}

TEST(Coefficients, Names) {
  EXPECT_EQ(coefficient_set_names(),
            (std::vector<std::string>{"jordan", "quintic", "polar_express", "cans", "aol", "deepseekv4"}));
}

TEST(Coefficients, OwnNumberOfSteps) {
  EXPECT_EQ(coefficient_steps("jordan"), std::vector<Coefficients>(5, kJordanStep));
  EXPECT_EQ(coefficient_steps("quintic").size(), 5u);
  EXPECT_EQ(coefficient_steps("polar_express").size(), 5u);
  EXPECT_EQ(coefficient_steps("cans").size(), 5u);
  EXPECT_EQ(coefficient_steps("aol").size(), 4u);
  const auto deepseek = coefficient_steps("deepseekv4");
  ASSERT_EQ(deepseek.size(), 10u);
  EXPECT_EQ(deepseek[7], kJordanStep);
  EXPECT_EQ(deepseek[8], (Coefficients{2, -1.5f, 0.5f}));
}

TEST(Coefficients, PolarExpressIsDividedByItsSafety) {
  const auto steps = coefficient_steps("polar_express");
  EXPECT_FLOAT_EQ(steps[0].a, static_cast<float>(8.28721201814563 / 1.05));
  EXPECT_FLOAT_EQ(steps[0].b, static_cast<float>(-23.595886519098837 / 1.157625));
  EXPECT_FLOAT_EQ(steps[0].c, static_cast<float>(17.300387312530933 / 1.2762815625));
}

TEST(Coefficients, FewerAndMoreSteps) {
  EXPECT_EQ(coefficient_steps("quintic", 2)[1], coefficient_steps("quintic")[1]);
  EXPECT_EQ(coefficient_steps("quintic", 2).size(), 2u);
  for (std::string name : {"quintic", "aol"}) {
    const auto own = coefficient_steps(name), more = coefficient_steps(name, 12);
    for (size_t i = 0; i < more.size(); ++i) EXPECT_EQ(more[i], own[i % own.size()]) << name << i;
  }
  for (std::string name : {"polar_express", "cans", "deepseekv4"}) {
    const auto own = coefficient_steps(name), more = coefficient_steps(name, 13);
    for (size_t i = 0; i < more.size(); ++i)
      EXPECT_EQ(more[i], own[std::min(i, own.size() - 1)]) << name << i;
  }
}

// A slip of a digit would show here. The relevant singular values of a normalised matrix are in 0.05 to 1;
// the sets promise about 0.7 to 1.2 there (aol up to 0.87, see the header).
TEST(Coefficients, EverySetBringsSingularValuesNearOne) {
  for (const std::string& name : coefficient_set_names())
    for (double x = 0.05; x <= (name == "aol" ? 0.87 : 1); x += 0.01) {
      EXPECT_GT(follow(coefficient_steps(name), x), 0.6) << name << " " << x;
      EXPECT_LT(follow(coefficient_steps(name), x), 1.3) << name << " " << x;
    }
  EXPECT_LT(follow(coefficient_steps("aol"), 1), 0);
  for (double x = 0.05; x <= 1; x += 0.05) EXPECT_NEAR(follow(coefficient_steps("deepseekv4"), x), 1, 0.02);
}

TEST(Coefficients, CustomRows) {
  EXPECT_EQ(coefficient_steps("2,-1.5,0.5"), (std::vector<Coefficients>{{2, -1.5f, 0.5f}}));
  const auto steps = coefficient_steps("3, -3.2, 1.2; 2,-1.5,5e-1", 4);
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps[0], (Coefficients{3, -3.2f, 1.2f}));
  EXPECT_EQ(steps[3], (Coefficients{2, -1.5f, 0.5f}));
}

TEST(Coefficients, Refusals) {
  using testing::AllOf;
  using testing::HasSubstr;
  EXPECT_THAT(message("jordon"),
              AllOf(HasSubstr("jordon"), HasSubstr("jordan, quintic, polar_express, cans")));
  EXPECT_THAT(message(""), HasSubstr("unknown"));
  EXPECT_THAT(message("jordan", -1), HasSubstr("-1 steps"));
  EXPECT_THAT(message("1,2"), HasSubstr("2 numbers"));
  EXPECT_THAT(message("1,2,3;"), HasSubstr("1 numbers"));
  EXPECT_THAT(message("1,2,x"), HasSubstr("'x' is not a finite number"));
  EXPECT_THAT(message("1,2,"), HasSubstr("'' is not a finite number"));
  EXPECT_THAT(message("1,nan,2"), HasSubstr("'nan'"));
  EXPECT_THAT(message("1,1e300,2"), HasSubstr("'1e300'"));
}

TEST(Coefficients, SafeRestartsFollowTheGrowthOfErrors) {
  EXPECT_EQ(safe_restarts(coefficient_steps("jordan"), DType::f32), std::vector<int>{});
  EXPECT_EQ(safe_restarts(coefficient_steps("jordan"), DType::f16), std::vector<int>{3});
  EXPECT_EQ(safe_restarts(coefficient_steps("deepseekv4"), DType::f32), std::vector<int>{6});
  EXPECT_EQ(safe_restarts(coefficient_steps("deepseekv4"), DType::f16), (std::vector<int>{3, 6, 9}));
  EXPECT_EQ(safe_restarts(coefficient_steps("2,-1.5,0.5"), DType::f16), std::vector<int>{});
}

// Every set in the gram form with its safe restarts stays near the standard form in double, also on matrices
// of low rank, whose empty directions are where errors grow.
TEST(Coefficients, SafeRestartsKeepTheGramFormAccurate) {
  const int64_t m = 48, n = 80, rank = 11;
  const auto fast = make_cpu_device(), exact = make_cpu_device({.kernels = KernelSet::reference});
  for (const bool low_rank : {false, true}) {
    std::vector<float> x(static_cast<size_t>(m * n), 0);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j)
        for (int64_t k = 0; k < (low_rank ? rank : 1); ++k)
          x[static_cast<size_t>(i * n + j)] += static_cast<float>(
              low_rank ? std::sin(1.7 * double(i * (k + 1))) * std::cos(2.3 * double((j + 1) * (k + 3)))
                       : std::sin(double(i * i * 7 + j * j * 3 + 5 * i * j)));
    const auto result = [&](Device& d, const OrthogonalizeOptions& o, int32_t* status) {
      Stream& s = d.compute();
      const Tensor in = Tensor::empty(d, {m, n}, DType::f32, "test"),
                   out = Tensor::empty(d, {m, n}, DType::f32, "test");
      const Tensor found = Tensor::empty(d, {1}, DType::i32, "test");
      ops::copy_from_host(s, in, x.data(), in.nbytes());
      ops::orthogonalize(s, out, in, found, o);
      ops::copy_to_host(s, status, found);
      return ops::to_floats(s, out);
    };
    for (const std::string& name : coefficient_set_names()) {
      for (const int steps : {0, 9}) {
        for (const DType working : {DType::f32, DType::f16}) {
          OrthogonalizeOptions o;
          o.steps = coefficient_steps(name, steps);
          int32_t status = 0;
          const auto want = result(*exact, o, &status);
          o.form = IterationForm::gram;
          o.working = working;
          o.restarts = safe_restarts(o.steps, working);
          const auto got = result(*fast, o, &status);
          EXPECT_EQ(status, 0) << name;
          double difference = 0, norm = 0;
          for (size_t i = 0; i < got.size(); ++i) {
            difference += std::pow(double{got[i]} - double{want[i]}, 2);
            norm += std::pow(double{want[i]}, 2);
          }
          const double error = std::sqrt(difference / norm);
          // Five orders above f32's rounding where directions are empty; .035 is what one restart in f16 may
          // cost. Noise in f16's empty directions grows to one after many steps of any form: nothing to
          // expect.
          const double expected = working == DType::f32 ? (low_rank ? 0.05 : 2e-5) : 0.035;
          if (working == DType::f32 || !low_rank) {
            EXPECT_LE(error, expected) << name << " " << steps;
          }
          EXPECT_TRUE(std::isfinite(error));
        }
      }
    }
  }
}

}  // namespace
}  // namespace sherd
