// Routing in groups by sigmoid scores, counts of choices, and the selection bias.
#include <gmock/gmock.h>
#include <sherd/nn/ops.h>

#include <algorithm>
#include <limits>

#include "kernels/lab.h"

namespace sherd::test {
namespace {

using Indices = std::vector<int32_t>;

Indices indices_of(Lab& lab, const Tensor& t) {
  Indices v(static_cast<size_t>(t.numel()));
  ops::copy_to_host(lab.s, v.data(), t);
  return v;
}

float logit(float probability) { return std::log(probability / (1 - probability)); }

TEST(RouteInGroups, HandSized) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    // Two groups of three: the second one's two best, 0.6 + 0.5, beat 0.9 + 0.1.
    const Tensor logits =
        lab.tensor({1, 6}, {logit(0.9f), logit(0.1f), logit(0.1f), logit(0.6f), logit(0.2f), logit(0.5f)});
    const Tensor indices = lab.empty({1, 2}, DType::i32), gates = lab.empty({1, 2});
    const auto route = [&](const ops::GroupChoice& choice, const Tensor& bias = {}) {
      ops::route_in_groups(lab.s, indices, gates, logits, bias, choice);
      return indices_of(lab, indices);
    };
    EXPECT_EQ(route({.groups = 2, .top_groups = 1, .normalised = false, .scaling = 2}), (Indices{3, 5}));
    expect_close(lab.floats(gates), {1.2f, 1.0f}, 1e-6, kernels);
    EXPECT_EQ(route({}), (Indices{0, 3}));
    expect_close(lab.floats(gates), {0.6f, 0.4f}, 1e-6, kernels);
    // The bias chooses and is not in the gates.
    EXPECT_EQ(route({.groups = 2, .top_groups = 1}, lab.tensor({6}, {0, 0.3f, 0, 0, 0, 0})), (Indices{0, 1}));
    expect_close(lab.floats(gates), {0.9f, 0.1f}, 1e-6, kernels);
  }
}

TEST(RouteInGroups, TiesGoToTheLowerIndexAndNanGivesDistinctExperts) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const Tensor logits = lab.tensor({2, 4}, {1, 1, 1, 1, nan, nan, nan, nan});
    const Tensor indices = lab.empty({2, 2}, DType::i32), gates = lab.empty({2, 2});
    ops::route_in_groups(lab.s, indices, gates, logits, {}, {.groups = 2, .top_groups = 1});
    const Indices chosen = indices_of(lab, indices);
    EXPECT_EQ(chosen[0], 0);
    EXPECT_EQ(chosen[1], 1);
    EXPECT_NE(chosen[2], chosen[3]);
    for (const int32_t e : chosen) EXPECT_THAT(e, testing::AllOf(testing::Ge(0), testing::Lt(4)));
  }
}

struct GroupCase {
  int64_t rows, experts, k, groups, top_groups;
};

// f32 sigmoids err by some 2^-23 and are sums of up to 8; a choice would differ only for scores that near.
TEST(RouteInGroups, MatchesReferenceForwardAndBackward) {
  for (const GroupCase& c :
       {GroupCase{1, 1, 1, 1, 1}, {7, 12, 3, 4, 2}, {33, 64, 8, 8, 4}, {5, 256, 8, 8, 4}, {9, 384, 8, 1, 1}})
    for (const bool normalised : {true, false})
      for (const int form : {0, 1, 2})
        expect_same_as_reference(
            [&, balanced = form > 0, padded = form > 1](Lab& lab) {
              const ops::GroupChoice choice{c.groups, c.top_groups, normalised, 2.5f};
              const Tensor logits = lab.random({c.rows, c.experts}, 5), bias = lab.random({c.experts}, 6);
              const Tensor indices = lab.empty({c.rows, c.k}, DType::i32), gates = lab.empty({c.rows, c.k});
              ops::route_in_groups(lab.s, indices, gates, logits, bias, choice);
              ops::RowsOfSequences at{2, 3, {}};
              if (padded) {
                std::vector<int32_t> lengths;
                for (int64_t i = 0; i < (c.rows + 4) / 3; ++i)
                  lengths.push_back(static_cast<int32_t>(3 - i % 4));
                at.lengths = lab.ints({std::ssize(lengths)}, lengths);
              }
              const Tensor counts = lab.empty({(c.rows + 4) / 3, c.experts}, DType::i32);
              ops::fill(lab.s, counts, 0);
              ops::count_choices(lab.s, counts, indices, at);
              const Tensor d = lab.empty(logits.shape());
              ops::route_in_groups_backward(lab.s, d, lab.random(gates.shape(), 7), logits, indices, choice,
                                            balanced ? counts : Tensor(), 0.5f, at);
              Floats all = lab.floats(gates);
              for (const float v : lab.floats(d)) all.push_back(v);
              for (const int32_t i : indices_of(lab, indices)) all.push_back(static_cast<float>(i));
              for (const int32_t i : indices_of(lab, counts)) all.push_back(static_cast<float>(i));
              return all;
            },
            4e-6, "experts " + std::to_string(c.experts));
}

TEST(RouteInGroups, GradientsAreThoseOfDifferences) {
  constexpr int64_t kRows = 4, kExperts = 6, kChosen = 2, kSequence = 2;
  std::vector<double> x = doubles(kRows * kExperts, 1), gates(kRows * kChosen),
                      weights = doubles(kRows * kChosen, 2);
  std::vector<int32_t> indices(kRows * kChosen), counts(kRows / kSequence * kExperts);
  for (const bool normalised : {true, false}) {
    GroupRouteArgs a{.rows = kRows,
                     .experts = kExperts,
                     .k = kChosen,
                     .groups = 3,
                     .top_groups = 2,
                     .normalised = normalised,
                     .scaling = 1.5f,
                     .logits = ref(x),
                     .gates = ref(gates),
                     .indices = indices.data()};
    const ExpertsKernels& kernels = *ExpertsKernels::reference();
    kernels.route_in_groups(no_context(), a);
    std::fill(counts.begin(), counts.end(), 0);
    kernels.count_choices(no_context(), {.rows = kRows,
                                         .experts = kExperts,
                                         .k = kChosen,
                                         .seq = kSequence,
                                         .indices = indices.data(),
                                         .counts = counts.data()});
    std::vector<double> dx(x.size());
    a.dgates = ref(weights), a.dlogits = ref(dx);
    a.counts = counts.data(), a.seq = kSequence, a.balance = 0.25f * kChosen * kSequence;
    kernels.route_in_groups_backward(no_context(), a);
    expect_gradient(
        x, dx,
        [&] {
          kernels.route_in_groups(no_context(), a);
          double loss = dot(gates, weights);
          for (int64_t r = 0; r < kRows; ++r) {
            double total = 0, counted = 0;
            for (int64_t e = 0; e < kExperts; ++e) {
              const double s = 1 / (1 + std::exp(-x[static_cast<size_t>(r * kExperts + e)]));
              total += s;
              counted += s * counts[static_cast<size_t>(r / kSequence * kExperts + e)];
            }
            loss += 0.25 * counted / total;
          }
          return loss;
        },
        1e-6);
  }
}

// Sequences of two rows in a call of four, with padding behind them, have the gradient and counts of sequences of two.
TEST(RouteInGroups, PaddingIsNotCountedAndHasNoBalancingGradient) {
  constexpr int64_t kExperts = 8, kChosen = 3;
  const ops::GroupChoice choice{4, 2};
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const auto run = [&](const Tensor& logits, const Tensor& dgates, const ops::RowsOfSequences& at) {
      const int64_t rows = logits.size(0);
      const Tensor indices = lab.empty({rows, kChosen}, DType::i32), gates = lab.empty({rows, kChosen});
      ops::route_in_groups(lab.s, indices, gates, logits, {}, choice);
      const Tensor counts = lab.empty({2, kExperts}, DType::i32), all = lab.empty({kExperts}, DType::i32);
      ops::fill(lab.s, counts, 0);
      ops::fill(lab.s, all, 0);
      ops::count_choices(lab.s, counts, indices, at);
      ops::count_choices(lab.s, all, indices, at);
      const Tensor dlogits = lab.empty(logits.shape());
      ops::route_in_groups_backward(lab.s, dlogits, dgates, logits, indices, choice, counts, 0.7f, at);
      Indices counted = indices_of(lab, counts);
      for (size_t e = 0; e < kExperts; ++e)
        EXPECT_EQ(indices_of(lab, all)[e], counted[e] + counted[kExperts + e]) << kernels;
      return std::pair{counted, lab.floats(dlogits)};
    };
    const Floats x = lab.floats(lab.random({8, kExperts}, 3)), d = lab.floats(lab.random({8, kChosen}, 4));
    const auto rows_of = [](const Floats& v, std::initializer_list<int64_t> rows) {
      const auto width = std::ssize(v) / 8;
      Floats some;
      for (const int64_t r : rows)
        some.insert(some.end(), v.begin() + r * width, v.begin() + (r + 1) * width);
      return some;
    };
    const auto [counts, gradient] =
        run(lab.tensor({8, kExperts}, x), lab.tensor({8, kChosen}, d), {0, 4, lab.ints({2}, {2, 2})});
    const auto [want_counts, want] = run(lab.tensor({4, kExperts}, rows_of(x, {0, 1, 4, 5})),
                                         lab.tensor({4, kChosen}, rows_of(d, {0, 1, 4, 5})), {0, 2, {}});
    EXPECT_EQ(counts, want_counts) << kernels;
    EXPECT_EQ(bits(rows_of(gradient, {0, 1, 4, 5})), bits(want)) << kernels;
    // Without a gradient of gates, that of padding is 0.
    const Floats alone =
        run(lab.tensor({8, kExperts}, x), lab.full({8, kChosen}, 0), {0, 4, lab.ints({2}, {2, 2})}).second;
    EXPECT_THAT(rows_of(alone, {2, 3, 6, 7}), testing::Each(0.0f)) << kernels;
  }
}

TEST(SelectionBias, FollowsTheLoadsAndResetsThem) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const Tensor bias = lab.tensor({4}, {0, 0, 1, -1}), load = lab.ints({4}, {0, 2, 5, 1});
    ops::update_selection_bias(lab.s, bias, load, 0.5f);
    expect_close(lab.floats(bias), {0.5f, 0, 0.5f, -0.5f}, 0, kernels);
    EXPECT_EQ(indices_of(lab, load), (Indices{0, 0, 0, 0}));
    // A skipped step, and one without rows.
    const Tensor skip = lab.empty({1}, DType::i64);
    ops::fill(lab.s, skip, 1);
    ops::update_selection_bias(lab.s, bias, lab.ints({4}, {9, 0, 0, 0}), 0.5f, skip);
    ops::update_selection_bias(lab.s, bias, load, 0.5f);
    expect_close(lab.floats(bias), {0.5f, 0, 0.5f, -0.5f}, 0, kernels);
  }
}

TEST(RouteInGroups, GroupsThatDoNotFitAreRefused) {
  Lab lab;
  const Tensor logits = lab.random({2, 12}, 1), indices = lab.empty({2, 3}, DType::i32),
               gates = lab.empty({2, 3});
  for (const ops::GroupChoice& bad : {ops::GroupChoice{5, 1}, {12, 12}, {4, 5}, {4, 0}, {0, 1}, {6, 1}})
    EXPECT_THROW(ops::route_in_groups(lab.s, indices, gates, logits, {}, bad), InvalidArgument);
}

}  // namespace
}  // namespace sherd::test
