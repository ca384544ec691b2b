#include "lab.h"

namespace sherd::test {
namespace {

struct State {
  Tensor w, m, v, g;
  State(Lab& lab, int64_t n)
      : w(lab.random({n}, 1)), m(lab.random({n}, 2)), v(lab.empty({n})), g(lab.random({n}, 4)) {
    Floats squares = normal(n, 3);
    for (float& x : squares) x *= x;
    v = lab.tensor({n}, squares);
  }
  Floats all(Lab& lab) const { return lab.floats({w, m, v}); }
};

const ops::AdamWStep kStep{
    .lr = 3e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = 3};

// One weight, two steps from zero state, worked out in double from the formulas of Loshchilov & Hutter.
TEST(AdamW, HandWorkedSteps) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    Tensor w = lab.full({1}, 1), m = lab.full({1}, 0), v = lab.full({1}, 0), g = lab.full({1}, 0.5);
    ops::AdamWStep o{.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.5, .step = 1};
    ops::adamw(lab.s, w, m, v, g, o);
    expect_close(lab.floats(m), {0.05f}, 1e-7);
    expect_close(lab.floats(v), {0.0025f}, 1e-7);
    // 1 * (1 - 0.05) - 0.1 * (0.05 / 0.1) / (sqrt(0.0025 / 0.01) + 1e-8) = 0.95 - 0.1
    expect_close(lab.floats(w), {0.85f}, 1e-6);
    ops::fill(lab.s, g, -1);
    o.step = 2;
    ops::adamw(lab.s, w, m, v, g, o);
    // m = 0.045 - 0.1, v = 0.002475 + 0.01; bias 0.19 and 0.0199
    expect_close(lab.floats(m), {-0.055f}, 1e-6);
    expect_close(lab.floats(v), {0.012475f}, 1e-6);
    const double w2 = 0.85 * 0.95 + 0.1 * (0.055 / 0.19) / (std::sqrt(0.012475 / 0.0199) + 1e-8);
    expect_close(lab.floats(w), {static_cast<float>(w2)}, 1e-6);
    EXPECT_NEAR(w2, 0.844060, 1e-6);
  }
}

TEST(AdamW, FollowsTheFormulaInDouble) {
  Lab lab;
  const int64_t n = 57;
  State s(lab, n);
  const Floats w = lab.floats(s.w), m = lab.floats(s.m), v = lab.floats(s.v), g = lab.floats(s.g);
  ops::adamw(lab.s, s.w, s.m, s.v, s.g, kStep);
  Floats want;
  for (size_t i = 0; i < w.size(); ++i) {
    const double mi = 0.9 * m[i] + 0.1 * g[i], vi = 0.95 * v[i] + 0.05 * double(g[i]) * g[i];
    const double mh = mi / (1 - std::pow(0.9, 3)), vh = vi / (1 - std::pow(0.95, 3));
    want.push_back(static_cast<float>(w[i] * (1 - 3e-5) - 3e-4 * mh / (std::sqrt(vh) + 1e-8)));
  }
  expect_close(lab.floats(s.w), want, 5e-7);
}

TEST(AdamW, MatchesReferenceToTheBit) {
  for (int64_t n : {0, 1, 7, 8, 9, 100, 1003})
    expect_bits_of_reference([&](Lab& lab) {
      State s(lab, n);
      ops::adamw(lab.s, s.w, s.m, s.v, s.g, kStep);
      return s.all(lab);
    });
}

TEST(AdamW, BitsDoNotDependOnThePlaceInTheRange) {
  Lab lab;
  const int64_t n = 300;
  auto run = [&](const std::vector<int64_t>& cuts) {
    State s(lab, n);
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      auto part = [&](const Tensor& t) { return t.flat(cuts[i], cuts[i + 1]); };
      ops::adamw(lab.s, part(s.w), part(s.m), part(s.v), part(s.g), kStep);
    }
    return bits(s.all(lab));
  };
  const auto whole = run({0, n});
  EXPECT_EQ(run({0, 1, 4, 11, 26, 57, 120, 299, n}), whole);
  EXPECT_EQ(run({0, 149, n}), whole);
}

TEST(AdamW, CopyIsTheNewWeightRoundedOnce) {
  for (const char* kernels : {kFast, "reference"})
    for (DType t : {DType::f32, DType::bf16, DType::f16})
      for (int64_t n : {0, 1, 9, 100, 1003}) {
        Lab lab(kernels);
        State plain(lab, n + 1), s(lab, n + 1);  // from the second element on: no boundary of 16 bytes
        const Tensor copy = lab.full({n + 3}, 7, t), rounded = lab.empty({n}, t);
        const auto step = [&](const State& x, const Tensor& to) {
          const auto part = [&](const Tensor& whole) { return whole.flat(1, n + 1); };
          ops::adamw(lab.s, part(x.w), part(x.m), part(x.v), part(x.g), kStep, to);
        };
        step(plain, Tensor());
        step(s, copy.flat(2, n + 2));
        EXPECT_EQ(bits(s.all(lab)), bits(plain.all(lab))) << kernels << name_of(t) << n;
        ops::cast(lab.s, rounded, s.w.flat(1, n + 1));
        const Floats got = lab.floats(copy);
        EXPECT_EQ(Floats(got.begin() + 2, got.end() - 1), lab.floats(rounded)) << kernels << name_of(t) << n;
        EXPECT_EQ(got[1], 7);
        EXPECT_EQ(got.back(), 7);
      }
}

TEST(Average, HandWorkedSteps) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const Tensor w = lab.tensor({3}, {1, -2, 3}), average = lab.tensor({3}, {0, 2, 3});
    const AverageSegment all{.average = average.raw(), .w = w.raw(), .count = 3};
    ops::average(lab.s, {&all, 1}, 0.75);
    EXPECT_EQ(lab.floats(average), (Floats{0.25f, 1, 3}));
    ops::average(lab.s, {&all, 1}, 0.75, lab.full({1}, 1, DType::i64));  // skipped
    EXPECT_EQ(lab.floats(average), (Floats{0.25f, 1, 3}));
    ops::average(lab.s, {&all, 1}, 0);
    EXPECT_EQ(lab.floats(average), lab.floats(w));
    for (const double decay : {1.0, -0.1, static_cast<double>(NAN)})
      EXPECT_THROW(ops::average(lab.s, {&all, 1}, decay), InvalidArgument);
    const AverageSegment none{.average = average.raw(), .count = 3};
    EXPECT_THROW(ops::average(lab.s, {&none, 1}, 0.5), ShapeMismatch);
  }
}

/// Parts of one State, each a parameter with its own count of updates, decay and copy.
struct Parts {
  Parts(Lab& lab, const std::vector<int64_t>& cuts, DType dtype)
      : state(lab, cuts.back()), copy(lab.full({cuts.back()}, 7, dtype)) {
    const Tensor w = state.w, m = state.m, v = state.v, g = state.g;
    char* to = static_cast<char*>(copy.raw());
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const int64_t at = cuts[i];
      segments.push_back({w.data<float>() + at, m.data<float>() + at, v.data<float>() + at,
                          g.data<float>() + at, i % 3 == 1 ? nullptr : to + at * size_of(dtype),
                          cuts[i + 1] - at, i % 2 == 0 ? 0.1 : 0.0, static_cast<int64_t>(i)});
    }
  }
  State state;
  Tensor copy;
  std::vector<AdamWSegment> segments;
};

const std::vector<int64_t> kCuts = [] {
  std::vector<int64_t> cuts = {0};
  for (int64_t i = 0; i < 120; ++i) cuts.push_back(cuts.back() + (i % 7 == 3 ? 0 : 1 + i * 37 % 113));
  cuts.push_back(cuts.back() + 5000);
  return cuts;
}();
const ops::AdamWRates kRates{.lr = 3e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};

TEST(AdamW, ManyParametersInOnePassAreManyPasses) {
  const auto n = static_cast<int64_t>(kCuts.size()) - 1;
  for (const char* kernels : {kFast, "reference"})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Lab lab(kernels);
      Parts together(lab, kCuts, dtype), single(lab, kCuts, dtype);
      Floats before;
      for (int64_t i = 0; i < n; ++i) before.push_back(static_cast<float>(i * i));
      const Tensor steps = lab.tensor({n}, before), biases = lab.empty({n, 2});
      ops::adamw_count(lab.s, steps, biases, kRates);
      ops::adamw(lab.s, together.segments, kRates, biases, dtype);
      const auto part = [&](const Tensor& t, size_t i) { return t.flat(kCuts[i], kCuts[i + 1]); };
      for (size_t i = 0; i < single.segments.size(); ++i) {
        const State& s = single.state;
        ops::adamw(lab.s, part(s.w, i), part(s.m, i), part(s.v, i), part(s.g, i),
                   {.lr = kRates.lr,
                    .beta1 = kRates.beta1,
                    .beta2 = kRates.beta2,
                    .eps = kRates.eps,
                    .weight_decay = single.segments[i].weight_decay,
                    .step = static_cast<int64_t>(i * i) + 1},
                   single.segments[i].copy ? part(single.copy, i) : Tensor());
      }
      EXPECT_EQ(bits(together.state.all(lab)), bits(single.state.all(lab))) << kernels;
      EXPECT_EQ(lab.floats(together.copy), lab.floats(single.copy)) << kernels;
      EXPECT_EQ(lab.floats(steps)[3], 10);
    }
}

TEST(AdamW, AFactorOfTheGradientsHasTheBitsOfScaledOnes) {
  for (const char* kernels : {kFast, "reference"})
    for (const int64_t n : {1, 9, 1003}) {
      Lab lab(kernels);
      const Tensor factor = lab.full({1}, 0.3), biases = lab.tensor({1, 2}, {1e-3f, 0.4f});
      const auto step = [&](const State& x, const Tensor& by) {
        const AdamWSegment all{
            x.w.data<float>(), x.m.data<float>(), x.v.data<float>(), x.g.data<float>(), nullptr, n, 0.1};
        ops::adamw(lab.s, std::span(&all, 1), {}, biases, DType::f32, {}, by);
        return bits(x.all(lab));
      };
      const State scaled(lab, n), given(lab, n);
      const Floats gradients = lab.floats(given.g);
      ops::scale_by(lab.s, scaled.g, factor);
      EXPECT_EQ(step(given, factor), step(scaled, {})) << kernels << " " << n;
      EXPECT_EQ(lab.floats(given.g), gradients);
    }
}

TEST(AdamW, BiasCorrectionsAreThePowersOfPow) {
  const std::vector<int64_t> counts = {1, 2, 3, 7, 10, 100, 999, 12345, 1000000, 16777216};
  for (const char* kernels : {kFast, "reference"})
    for (const double beta : {0.0, 0.5, 0.9, 0.95, 0.999, 0.9999}) {
      Lab lab(kernels);
      const auto n = static_cast<int64_t>(counts.size());
      Floats before;
      for (const int64_t c : counts) before.push_back(static_cast<float>(c - 1));
      const Tensor steps = lab.tensor({n}, before), biases = lab.empty({n, 2});
      ops::adamw_count(lab.s, steps, biases, {.lr = 3e-3, .beta1 = beta, .beta2 = beta, .eps = 0});
      const Floats got = lab.floats(biases), after = lab.floats(steps);
      for (size_t i = 0; i < counts.size(); ++i) {
        const double bias = 1 - std::pow(beta, static_cast<double>(counts[i]));
        EXPECT_EQ(after[i], static_cast<float>(counts[i]));
        EXPECT_EQ(got[2 * i], static_cast<float>(3e-3 / bias)) << beta << " " << counts[i];
        EXPECT_EQ(got[2 * i + 1], static_cast<float>(std::sqrt(bias))) << beta << " " << counts[i];
      }
    }
}

TEST(AdamW, ANumberOnTheDeviceStopsIt) {
  const auto n = static_cast<int64_t>(kCuts.size()) - 1;
  for (const char* kernels : {kFast, "reference"})
    for (const int64_t stop : {0, 1}) {
      Lab lab(kernels);
      Parts parts(lab, kCuts, DType::f16);
      ops::fill(lab.s, parts.state.g, NAN);
      const Floats before = parts.state.all(lab), copy = lab.floats(parts.copy);
      const Tensor steps = lab.full({n}, 4), biases = lab.full({n, 2}, 0.5),
                   skip = lab.full({1}, static_cast<double>(stop), DType::i64);
      ops::adamw_count(lab.s, steps, biases, kRates, skip);
      ops::adamw(lab.s, parts.segments, kRates, biases, DType::f16, skip);
      EXPECT_EQ(lab.floats(steps), Floats(static_cast<size_t>(n), stop ? 4.0f : 5.0f));
      EXPECT_EQ(bits(parts.state.all(lab)) == bits(before), stop == 1) << kernels;
      EXPECT_EQ(lab.floats(parts.copy) == copy, stop == 1) << kernels;
    }
}

TEST(AdamW, SegmentsMustFit) {
  Lab lab;
  Parts parts(lab, {0, 3, 5}, DType::f32);
  const Tensor biases = lab.full({2, 2}, 1);
  const auto run = [&] { ops::adamw(lab.s, parts.segments, kRates, biases); };
  EXPECT_NO_THROW(run());
  parts.segments[0].m = nullptr;
  EXPECT_THROW(run(), ShapeMismatch);
  parts.segments[0].count = 0;  // reads nothing
  EXPECT_NO_THROW(run());
  parts.segments[1].bias = 2;
  EXPECT_THROW(run(), ShapeMismatch);
  EXPECT_THROW(ops::adamw(lab.s, {}, kRates, lab.empty({2})), ShapeMismatch);
  EXPECT_THROW(ops::adamw(lab.s, {}, kRates, biases, DType::f64), ShapeMismatch);
  EXPECT_THROW(ops::adamw(lab.s, {}, kRates, biases, DType::f32, lab.empty({1})), ShapeMismatch);
  EXPECT_THROW(ops::adamw_count(lab.s, lab.empty({3}), biases, kRates), ShapeMismatch);
  EXPECT_THROW(ops::adamw_count(lab.s, lab.empty({2}), biases, {.lr = NAN}), InvalidArgument);
}

TEST(AdamW, CopyMustFit) {
  Lab lab;
  State s(lab, 3);
  EXPECT_THROW(ops::adamw(lab.s, s.w, s.m, s.v, s.g, kStep, lab.empty({2})), ShapeMismatch);
  EXPECT_THROW(ops::adamw(lab.s, s.w, s.m, s.v, s.g, kStep, lab.empty({3}, DType::f64)), ShapeMismatch);
}

TEST(AdamW, RejectsImpossibleOptions) {
  Lab lab;
  State s(lab, 3);
  ops::AdamWStep o;
  o.step = 0;
  EXPECT_THROW(ops::adamw(lab.s, s.w, s.m, s.v, s.g, o), InvalidArgument);
  o = {};
  o.beta2 = 1;
  EXPECT_THROW(ops::adamw(lab.s, s.w, s.m, s.v, s.g, o), InvalidArgument);
}

}  // namespace
}  // namespace sherd::test
