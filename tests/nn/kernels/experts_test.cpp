// Routing, sorting and moving rows for mixtures of experts.
#include <gmock/gmock.h>
#include <sherd/nn/ops.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/lab.h"

namespace sherd::test {
namespace {

using Ints = std::vector<int32_t>;

Ints ints_of(Lab& lab, const Tensor& t) {
  Ints v(static_cast<size_t>(t.numel()));
  ops::copy_to_host(lab.s, v.data(), t);
  return v;
}

struct Routed {
  Ints indices;
  Floats gates;
};

Routed route(Lab& lab, const Floats& logits, int64_t experts, int64_t k, DType t = DType::f32,
             std::optional<bool> normalised = {}) {
  const int64_t rows = static_cast<int64_t>(logits.size()) / experts;
  const Tensor indices = lab.empty({rows, k}, DType::i32), gates = lab.empty({rows, k});
  ops::route_top_k(lab.s, indices, gates, lab.tensor({rows, experts}, logits, t), normalised);
  return {ints_of(lab, indices), lab.floats(gates)};
}

TEST(RouteTopK, HandSized) {
  const float ln2 = std::log(2.0f), ln3 = std::log(3.0f);
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const Floats logits = {0, ln2, ln3, 0, 5, 5 + ln3, 5, 5};
    const Routed one = route(lab, logits, 4, 1), two = route(lab, logits, 4, 2);
    EXPECT_EQ(one.indices, (Ints{2, 1}));
    expect_close(one.gates, {3.0f / 7, 0.5f}, 1e-6, kernels);
    EXPECT_EQ(two.indices, (Ints{2, 1, 1, 0}));
    expect_close(two.gates, {0.6f, 0.4f, 0.75f, 0.25f}, 1e-6, kernels);
  }
}

TEST(RouteTopK, TiesGoToTheLowerIndexAndNanGivesValidExperts) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    EXPECT_EQ(route(lab, {1, 1, 1, 0, 2, 2, 3, 1, 3}, 3, 2).indices, (Ints{0, 1, 1, 2, 0, 2}));
    EXPECT_EQ(route(lab, {1, 1, 1, 0, 2, 2, 3, 1, 3}, 3, 1).indices, (Ints{0, 1, 0}));
    for (int32_t i : route(lab, {nan, nan, nan, nan, 1, nan}, 3, 2).indices) EXPECT_THAT(i, testing::Lt(3));
    const Ints all = route(lab, {nan, nan, nan}, 3, 2).indices;
    EXPECT_NE(all[0], all[1]);
    // Far apart: the loser's gate is 0, nothing overflows.
    expect_close(route(lab, {500, -500, -600, -600, 0, 0}, 3, 2).gates, {1, 0, 0.5f, 0.5f}, 1e-6);
  }
}

TEST(RouteTopK, SeveralExpertsHandSized) {
  const float ln2 = std::log(2.0f), ln3 = std::log(3.0f);
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const Floats logits = {0, ln2, ln3, 0, 0};  // probabilities 1, 2, 3, 1, 1 eighths
    EXPECT_EQ(route(lab, logits, 5, 4).indices, (Ints{2, 1, 0, 3}));
    expect_close(route(lab, logits, 5, 4).gates, {3.0f / 7, 2.0f / 7, 1.0f / 7, 1.0f / 7}, 1e-6, kernels);
    expect_close(route(lab, logits, 5, 4, DType::f32, false).gates, {0.375f, 0.25f, 0.125f, 0.125f}, 1e-6,
                 kernels);
    expect_close(route(lab, logits, 5, 2, DType::f32, false).gates, {0.375f, 0.25f}, 1e-6, kernels);
    EXPECT_EQ(route(lab, logits, 5, 1, DType::f32, true).gates, Floats{1});
    expect_close(route(lab, logits, 5, 5).gates, route(lab, logits, 5, 5, DType::f32, false).gates, 1e-6,
                 kernels);
  }
}

TEST(RouteTopK, NanIsTakenWhereTheReferenceTakesIt) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  Floats logits;
  for (float first : {nan, -inf, 0.0f, inf})
    for (float second : {nan, -inf, 1.0f, inf})
      for (float others : {nan, -inf, 2.0f, inf}) {
        logits.insert(logits.end(), {first, second});
        logits.insert(logits.end(), 68, others);
      }
  Lab fast, slow("reference");
  for (int64_t k : {1, 2, 5})
    EXPECT_EQ(route(fast, logits, 70, k).indices, route(slow, logits, 70, k).indices) << k;
}

TEST(RouteTopK, MatchesReference) {
  for (DType t : {DType::f32, DType::bf16})
    for (int64_t k : {1, 2, 4, 64})
      for (int64_t experts : {2, 3, 8, 64, 200}) {
        if (k > experts) continue;
        Lab fast, slow("reference");
        const Floats logits = normal(37 * experts, 5, 2);
        const Routed a = route(fast, logits, experts, k, t), b = route(slow, logits, experts, k, t);
        EXPECT_EQ(a.indices, b.indices);
        expect_close(a.gates, b.gates, 1e-6);
        const bool other = k == 1;  // than what is usual
        expect_close(route(fast, logits, experts, k, t, other).gates,
                     route(slow, logits, experts, k, t, other).gates, 1e-6);
      }
  Lab lab;
  EXPECT_EQ(route(lab, normal(37, 5), 1, 1).gates, Floats(37, 1.0f));
  EXPECT_TRUE(route(lab, {}, 4, 2).indices.empty());
}

TEST(RouteTopK, BackwardMatchesReference) {
  for (DType t : {DType::f32, DType::bf16})
    for (int64_t k : {1, 2, 4, 6, -1, -2, -4})  // negative: gates that are not usual for as many
      for (const bool balanced : {false, true})
        expect_same_as_reference(
            [&, k = std::abs(k), normalised = (k > 1) || k == -1](Lab& lab) {
              const Tensor logits = lab.random({50, 6}, 1, t), dgates = lab.random({50, k}, 2);
              const Tensor indices = lab.empty({50, k}, DType::i32), gates = lab.empty({50, k});
              const Tensor dlogits = lab.empty({50, 6}, t);
              ops::route_top_k(lab.s, indices, gates, logits, normalised);
              ops::TopKBalance balance;
              if (balanced)
                balance = {.counts = lab.ints({1, 6}, {3, 0, 7, 30, 5, 5}),
                           .factor = 15.0f / static_cast<float>(k)};
              ops::route_top_k_backward(lab.s, dlogits, dgates, logits, indices, balance, normalised);
              return lab.floats(dlogits);
            },
            t == DType::f32 ? 5e-6 : 2 * epsilon(t));
}

// Two of three sequences of four rows, of which 3 and 1 rows are not padding; the call has all rows but the first two.
TEST(RouteTopK, PaddingIsNotCountedAndHasNoBalancingGradient) {
  constexpr int64_t kRows = 10, kExperts = 5;
  for (const char* kernels : {kFast, "reference"})
    for (const int64_t k : {1, 2, 3}) {
      Lab lab(kernels);
      const Tensor logits = lab.random({kRows, kExperts}, 1), dgates = lab.random({kRows, k}, 2);
      const Tensor indices = lab.empty({kRows, k}, DType::i32), gates = lab.empty({kRows, k});
      ops::route_top_k(lab.s, indices, gates, logits);
      const ops::RowsOfSequences places{2, 4, lab.ints({3}, {4, 3, 1})};
      const std::vector<int64_t> counted = {0, 1, 2, 3, 4, 6};
      Ints want(2 * kExperts, 0);
      const Ints chosen = ints_of(lab, indices);
      for (const int64_t r : counted)
        for (int64_t i = 0; i < k; ++i)
          ++want[static_cast<size_t>(kExperts + chosen[static_cast<size_t>(r * k + i)])];
      // Counts of the second of two layers; the first one's are different.
      const Tensor counts = lab.empty({2, kExperts}, DType::i32);
      ops::fill(lab.s, counts, 0);
      ops::count_choices(lab.s, counts.rows(1, 2).view({kExperts}), indices, places);
      EXPECT_EQ(ints_of(lab, counts), want) << kernels;

      const auto gradient = [&](const Tensor& of_gates, const ops::TopKBalance& balance) {
        const Tensor dlogits = lab.empty({kRows, kExperts});
        ops::route_top_k_backward(lab.s, dlogits, of_gates, logits, indices, balance);
        return lab.floats(dlogits);
      };
      const ops::TopKBalance padded{.counts = counts, .layer = 1, .factor = 3, .rows = places};
      const Floats with = gradient(dgates, padded), without = gradient(dgates, {}),
                   as_rows = gradient(dgates, {.counts = counts, .layer = 1, .factor = 3});
      for (int64_t r = 0; r < kRows; ++r) {
        const auto row = [&](const Floats& v) {
          return Floats(v.begin() + r * kExperts, v.begin() + (r + 1) * kExperts);
        };
        const bool is_counted = std::count(counted.begin(), counted.end(), r) == 1;
        EXPECT_EQ(bits(row(with)), bits(row(is_counted ? as_rows : without))) << kernels << " row " << r;
        EXPECT_NE(bits(row(as_rows)), bits(row(without))) << kernels << " row " << r;
      }
      // 3 / (6 rows * 2 layers^2) * load * softmax' of the first row.
      const Floats alone = gradient(lab.full({kRows, k}, 0), padded), x = lab.floats(logits);
      double total = 0, mean = 0;
      for (size_t e = 0; e < kExperts; ++e) total += std::exp(double{x[e]});
      for (size_t e = 0; e < kExperts; ++e) mean += std::exp(double{x[e]}) / total * want[kExperts + e];
      for (size_t e = 0; e < kExperts; ++e)
        EXPECT_NEAR(alone[e], 3.0 / 24 * std::exp(double{x[e]}) / total * (want[kExperts + e] - mean), 1e-6)
            << kernels;
    }
}

TEST(RouteTopK, CountsAndLengthsAreChecked) {
  Lab lab;
  const Tensor logits = lab.random({4, 6}, 1), indices = lab.ints({4, 1}, {0, 1, 2, 3}),
               dgates = lab.random({4, 1}, 2), dlogits = lab.empty({4, 6});
  const auto backward = [&](const ops::TopKBalance& balance) {
    ops::route_top_k_backward(lab.s, dlogits, dgates, logits, indices, balance);
  };
  const Tensor counts = lab.ints({1, 6}, {1, 1, 1, 1, 0, 0});
  backward({.counts = counts, .factor = 1, .rows = {0, 2, lab.ints({2}, {1, 2})}});
  EXPECT_THROW(backward({.counts = lab.ints({6}, {1, 1, 1, 1, 0, 0}), .factor = 1}), ShapeMismatch);
  EXPECT_THROW(backward({.counts = counts, .layer = 1, .factor = 1}), ShapeMismatch);
  EXPECT_THROW(backward({.counts = counts, .factor = 1, .rows = {1, 2, lab.ints({2}, {1, 2})}}),
               ShapeMismatch);
  EXPECT_THROW(backward({.counts = counts, .factor = 1, .rows = {0, 2, lab.empty({2})}}), ShapeMismatch);
  EXPECT_THROW(backward({.counts = counts, .factor = 1, .rows = {0, 0, {}}}), InvalidArgument);
}

TEST(RouteTopK, ReferenceBackwardIsTheGradient) {
  constexpr int64_t kRows = 5, kExperts = 4;
  const Ints counts = {1, 0, 3, 2};
  for (const auto& [k, normalised] :
       {std::pair{1, false}, {1, true}, {2, true}, {2, false}, {3, true}, {3, false}}) {
    std::vector<double> logits = doubles(kRows * kExperts, 3), gates(kRows * 3),
                        dgates = doubles(kRows * 3, 4);
    std::vector<double> dlogits(logits.size());
    Ints indices(kRows * 3);
    dgates.resize(static_cast<size_t>(kRows * k));
    gates.resize(dgates.size());
    RouteArgs a{.rows = kRows, .experts = kExperts, .k = k, .logits = ref(logits), .gates = ref(gates)};
    a.normalised = normalised;
    a.indices = indices.data();
    a.dgates = ref(dgates);
    a.dlogits = ref(dlogits);
    a.counts = counts.data();
    a.balance = 0.25f * static_cast<float>(6 / k);  // 6 choices were counted
    ExpertsKernels::reference()->route_top_k(no_context(), a);
    ExpertsKernels::reference()->route_top_k_backward(no_context(), a);
    const auto loss = [&] {
      ExpertsKernels::reference()->route_top_k(no_context(), a);
      double balance = 0;
      for (int64_t r = 0; r < kRows; ++r) {
        double total = 0, weighted = 0;
        for (int64_t e = 0; e < kExperts; ++e) {
          const double p = std::exp(logits[static_cast<size_t>(r * kExperts + e)]);
          total += p;
          weighted += p * counts[static_cast<size_t>(e)];
        }
        balance += weighted / total;
      }
      return dot(gates, dgates) + 0.25 * balance;
    };
    expect_gradient(logits, dlogits, loss, 1e-7);
  }
}

TEST(SortByExpert, IsStableAndCounts) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const Tensor indices = lab.ints({4, 2}, {2, 0, 2, 3, 0, 2, 3, 0});
    const Tensor order = lab.empty({8}, DType::i32), position = lab.empty({8}, DType::i32);
    const Tensor counts = lab.empty({5}, DType::i32);
    ops::sort_by_expert(lab.s, order, position, counts, indices);
    EXPECT_EQ(ints_of(lab, counts), (Ints{3, 0, 3, 2, 0}));
    EXPECT_EQ(ints_of(lab, order), (Ints{1, 4, 7, 0, 2, 5, 3, 6}));
    EXPECT_EQ(ints_of(lab, position), (Ints{3, 0, 4, 6, 1, 5, 7, 2}));
    const Tensor none = lab.empty({0}, DType::i32);
    ops::sort_by_expert(lab.s, none, none, counts, lab.empty({0, 2}, DType::i32));
    EXPECT_EQ(ints_of(lab, counts), Ints(5, 0));
  }
}

TEST(SortByExpert, MatchesReference) {
  for (int32_t experts : {1, 3, 8, 200}) {
    for (size_t count : {1, 31, 256, 257, 5000}) {
      std::mt19937 engine(3);
      Ints chosen(count);
      for (int32_t& e : chosen) e = static_cast<int32_t>(engine() % static_cast<unsigned>(experts));
      std::vector<Ints> results;
      for (const char* kernels : {kFast, "reference"}) {
        Lab lab(kernels);
        const int64_t n = static_cast<int64_t>(count);
        const Tensor order = lab.empty({n}, DType::i32), position = lab.empty({n}, DType::i32),
                     counts = lab.empty({experts}, DType::i32);
        ops::sort_by_expert(lab.s, order, position, counts, lab.ints({n}, chosen));
        for (const Tensor& t : {order, position, counts}) results.push_back(ints_of(lab, t));
      }
      for (size_t i = 0; i < 3; ++i) EXPECT_EQ(results[i], results[i + 3]) << experts << " " << count;
    }
  }
}

// Places in random order, and its inverse.
struct Places {
  explicit Places(int64_t n) : order(static_cast<size_t>(n)), position(order.size()) {
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(9));
    for (size_t j = 0; j < order.size(); ++j)
      position[static_cast<size_t>(order[j])] = static_cast<int32_t>(j);
  }
  Ints order, position;
};

TEST(ExpertRows, HandSized) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const Tensor tokens = lab.tensor({2, 2}, {1, 2, 3, 4}), gates = lab.tensor({2, 2}, {0.5f, 2, 1, 3});
    const Tensor order = lab.ints({4}, {3, 0, 2, 1}), position = lab.ints({4}, {1, 3, 2, 0});
    const Tensor copies = lab.empty({4, 2}), sums = lab.empty({2, 2}), dgates = lab.empty({2, 2});
    ops::expand_rows(lab.s, copies, tokens, order, gates);
    EXPECT_EQ(lab.floats(copies), (Floats{9, 12, 0.5f, 1, 3, 4, 2, 4}));
    ops::combine_rows(lab.s, sums, copies, position, gates);
    EXPECT_EQ(lab.floats(sums), (Floats{4.25f, 8.5f, 30, 40}));
    ops::combine_rows(lab.s, sums, copies, position, {});
    EXPECT_EQ(lab.floats(sums), (Floats{2.5f, 5, 12, 16}));
    ops::combine_gates_backward(lab.s, dgates, tokens, copies, position);
    EXPECT_EQ(lab.floats(dgates), (Floats{2.5f, 10, 25, 75}));
    ops::expand_rows(lab.s, copies, tokens, order, {});
    EXPECT_EQ(lab.floats(copies), (Floats{3, 4, 1, 2, 3, 4, 1, 2}));
  }
}

TEST(ExpertRows, MatchReference) {
  for (DType t : {DType::f32, DType::bf16})
    for (int64_t slots : {1, 2, 3})
      for (int64_t cols : {1, 63, 64, 150, 2056})
        for (const bool gated : {false, true}) {
          const int64_t rows = 31, n = rows * slots;
          const Places places(n);
          const auto experiment = [&](Lab& lab) {
            const Tensor order = lab.ints({n}, places.order), position = lab.ints({n}, places.position);
            const Tensor gates = gated ? lab.random({rows, slots}, 3) : Tensor();
            const Tensor copies = lab.empty({n, cols}, t), sums = lab.empty({rows, cols}, t);
            const Tensor dgates = lab.empty({rows, slots});
            ops::expand_rows(lab.s, copies, lab.random({rows, cols}, 1, t), order, gates);
            const Tensor other = lab.random({n, cols}, 2, t);
            ops::combine_rows(lab.s, sums, other, position, gates);
            ops::combine_gates_backward(lab.s, dgates, sums, copies, position);
            Floats all = lab.floats(copies);
            for (const Tensor& more : {sums, dgates})
              for (float v : lab.floats(more)) all.push_back(v);
            return all;
          };
          // The f32 dot product behind a gate adds `cols` terms near sqrt(slots); each addition rounds a
          // running sum near sqrt(cols * slots), and sqrt(cols) such roundings remain of them.
          const double dot = std::sqrt(static_cast<double>(slots)) * static_cast<double>(cols) * 0x1p-24;
          expect_same_as_reference(experiment, t == DType::f32 ? 2e-5 + dot : 0.02);
        }
}

TEST(ExpertRows, UnalignedRowsHaveTheBitsOfAlignedOnes) {
  const Places places(14);
  for (DType t : {DType::f32, DType::bf16}) {
    for (int64_t cols : {8, 2048}) {
      Lab lab;
      const Tensor order = lab.ints({14}, places.order), position = lab.ints({14}, places.position);
      const Tensor gates = lab.random({7, 2}, 3), dgates = lab.empty({7, 2});
      std::vector<Floats> results;
      for (const bool shifted : {false, true}) {
        Tensor tokens = lab.random({7, cols}, 1, t), copies = lab.random({14, cols}, 2, t);
        if (shifted) tokens = lab.shifted(tokens), copies = lab.shifted(copies);
        ops::combine_gates_backward(lab.s, dgates, tokens, copies, position);
        results.push_back(lab.floats(dgates));
        ops::expand_rows(lab.s, copies, tokens, order, gates);
        results.push_back(lab.floats(copies));
        ops::combine_rows(lab.s, tokens, copies, position, gates);
        results.push_back(lab.floats(tokens));
      }
      for (size_t i = 0; i < 3; ++i) EXPECT_EQ(bits(results[i]), bits(results[i + 3])) << cols << " " << i;
    }
  }
}

TEST(ExpertRows, NoRowsAndEveryNumberOfThreads) {
  const Places places(600);
  std::vector<Floats> results;
  for (int threads : {1, 2, 5}) {
    Lab lab(kFast, threads);
    const Tensor position = lab.ints({600}, places.position), gates = lab.random({300, 2}, 3);
    const Tensor sums = lab.empty({300, 700}), dgates = lab.empty({300, 2}),
                 copies = lab.random({600, 700}, 1);
    ops::combine_rows(lab.s, sums, copies, position, gates);
    ops::combine_gates_backward(lab.s, dgates, sums, copies, position);
    const Tensor dbias = lab.full({700}, 1);
    ops::bias_backward(lab.s, dbias, copies);
    Floats all = lab.floats(sums);
    for (const Tensor& more : {dgates, dbias})
      for (float v : lab.floats(more)) all.push_back(v);
    results.push_back(all);
    const Tensor none = lab.empty({0, 7}), no_places = lab.empty({0}, DType::i32);
    ops::expand_rows(lab.s, none, none, no_places, {});
    ops::combine_rows(lab.s, none, none, no_places, {});
    lab.s.synchronize();
  }
  EXPECT_EQ(bits(results[0]), bits(results[1]));
  EXPECT_EQ(bits(results[0]), bits(results[2]));
}

TEST(Bias, AddsAndSumsColumns) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const Tensor y = lab.tensor({2, 3}, {1, 2, 3, 4, 5, 6});
    ops::add_bias(lab.s, y, lab.tensor({3}, {10, 20, 30}));
    EXPECT_EQ(lab.floats(y), (Floats{11, 22, 33, 14, 25, 36}));
    const Tensor d = lab.tensor({3}, {1, 0, -1});
    ops::bias_backward(lab.s, d, y);
    EXPECT_EQ(lab.floats(d), (Floats{26, 47, 68}));
    ops::bias_backward(lab.s, d, lab.empty({0, 3}));
    EXPECT_EQ(lab.floats(d), (Floats{26, 47, 68}));
  }
  for (DType t : {DType::f32, DType::bf16})
    expect_same_as_reference(
        [&](Lab& lab) {
          const Tensor y = lab.random({77, 130}, 1, t), d = lab.random({130}, 2);
          ops::add_bias(lab.s, y, lab.random({130}, 3, t));
          ops::bias_backward(lab.s, d, y);
          Floats all = lab.floats(y);
          for (float v : lab.floats(d)) all.push_back(v);
          return all;
        },
        t == DType::f32 ? 1e-5 : 0.02);
}

TEST(ExpertOps, WrongArgumentsAreRefused) {
  Lab lab;
  const Tensor logits = lab.empty({4, 3}), four = lab.empty({4, 4}, DType::i32), gates = lab.empty({4, 4});
  EXPECT_THROW(ops::route_top_k(lab.s, four, gates, logits), InvalidArgument);
  EXPECT_THROW(
      ops::route_top_k(lab.s, lab.empty({4, 65}, DType::i32), lab.empty({4, 65}), lab.empty({4, 100})),
      InvalidArgument);
  EXPECT_THROW(ops::route_top_k(lab.s, lab.empty({4, 2}, DType::i32), lab.empty({4, 2}), lab.empty({4, 1})),
               InvalidArgument);
  EXPECT_THROW(ops::route_top_k(lab.s, lab.empty({5, 2}, DType::i32), lab.empty({5, 2}), logits),
               ShapeMismatch);
  EXPECT_THROW(ops::expand_rows(lab.s, lab.empty({5, 3}), logits, lab.empty({5}, DType::i32), {}),
               ShapeMismatch);
  EXPECT_THROW(ops::combine_rows(lab.s, logits, lab.empty({8, 2}), lab.empty({8}, DType::i32), {}),
               ShapeMismatch);
  EXPECT_THROW(ops::add_bias(lab.s, logits, lab.empty({4})), ShapeMismatch);
  EXPECT_THROW(ops::bias_backward(lab.s, lab.empty({3}, DType::bf16), logits), ShapeMismatch);
}

TEST(ExpertOps, IndicesOutsideFailTheStream) {
  {
    Lab lab;
    const Tensor n = lab.empty({2}, DType::i32);
    const auto fails = [&] {  // at its second pass, if the first is done by then
      ops::sort_by_expert(lab.s, n, lab.empty({2}, DType::i32), lab.empty({3}, DType::i32),
                          lab.ints({2}, {1, 3}));
      lab.s.synchronize();
    };
    EXPECT_THROW(fails(), InvalidArgument);
  }
  Lab lab;
  const auto fails = [&] {
    ops::expand_rows(lab.s, lab.empty({2, 3}), lab.full({2, 3}, 0), lab.ints({2}, {-1, 0}), {});
    lab.s.synchronize();
  };
  EXPECT_THROW(fails(), InvalidArgument);
}

}  // namespace
}  // namespace sherd::test
