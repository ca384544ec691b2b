// Muon of a part of the rows, against the rule of Dion2 in double.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "optim/double_matrices.h"
#include "optim/matrix_rules.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

TEST(MuonFraction, IsTheRuleInDouble) {
  // Dion2 with its momentum times 0.05: the scale of torch.optim.Muon, which orthogonalization removes.
  constexpr double kMomentum = 0.95;
  constexpr size_t kRows = 7, kCols = 7, kKept = 2;  // of "square": ceil(7 / 4)
  for (const bool nesterov : {false, true}) {
    const UpdateRuleFactory rule = Muon::factory({.whole = {.nesterov = nesterov}, .fraction = 0.25});
    Doubles momentum(kRows * kCols, 0), weight;
    for (int steps = 0; steps <= 6; ++steps) {
      // Every step begins with the weights that the run had before it.
      const OwnedValues::Map got = trained(rule, {.steps = steps, .model = &every_matrix()});
      const std::vector<float>&w = got.at("square"), &buffer = got.at("square momentum_buffer");
      if (steps == 0) {
        weight.assign(w.begin(), w.end());
        continue;
      }
      Doubles input(momentum.size());
      for (size_t i = 0; i < momentum.size(); ++i) {
        const double g = matrix_gradient(i, steps - 1);
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
          update[rows[k] * kCols + c] = 0.2 * std::sqrt(7.0) * o[k * kCols + c];
          momentum[rows[k] * kCols + c] *= kMomentum;
        }
      for (size_t i = 0; i < momentum.size(); ++i) {
        // Sums of 6 steps in f32, of values below 1: some 1e-7. Newton-Schulz multiplies them by at most 3.4^5.
        EXPECT_NEAR(buffer[i], momentum[i] / kMomentum, 1e-6) << steps << " " << i;
        EXPECT_NEAR(w[i], (1 - kMatrixRate * kMatrixDecay) * weight[i] - kMatrixRate * update[i], 1e-5)
            << steps << " " << i;
      }
      weight.assign(w.begin(), w.end());
    }
  }
}

TEST(MuonFraction, OfOneIsMuonInBitsAndAllButTheLastRowIsNot) {
  const auto of = [](double fraction) {
    return trained(Muon::factory({.fraction = fraction}), {.model = &every_matrix()});
  };
  const OwnedValues::Map muon = trained(Muon::factory({}), {.model = &every_matrix()});
  EXPECT_EQ(other_bits(of(1), muon), "");
  // All rows: the same rows, and momentum that decays in all of them.
  EXPECT_EQ(other_bits(of(0.99), muon), "");
  EXPECT_NE(other_bits(of(0.8), muon), "");
}

TEST(MuonFraction, WhatDoesNotFitIsRefused) {
  const auto problems = [](const MuonOptions& o) { return problems_of(o); };
  EXPECT_THAT(problems({.fraction = 0}), ::testing::ElementsAre(HasSubstr("fraction 0 must lie in (0, 1]")));
  EXPECT_THAT(problems({.fraction = NAN}), ::testing::ElementsAre(HasSubstr("must lie in (0, 1]")));
  EXPECT_THAT(problems({.whole = {.mode = MatrixMode::gram}, .fraction = 0.5}),
              ::testing::ElementsAre(HasSubstr("fraction 0.5 needs whole matrices")));
  EXPECT_THAT(problems({.whole = {.tensor = MatrixTensorMode::distributed}, .fraction = 0.5}),
              ::testing::ElementsAre(HasSubstr("fraction 0.5 needs whole matrices")));
  EXPECT_THAT(problems({.whole = {.momentum = 0}, .fraction = 0.5}),
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
