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
  Floats all(Lab& lab) const {
    Floats out;
    for (const Tensor& t : {w, m, v}) {
      const Floats f = lab.floats(t);
      out.insert(out.end(), f.begin(), f.end());
    }
    return out;
  }
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
