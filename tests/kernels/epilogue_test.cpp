#include <limits>

#include "lab.h"

namespace sherd::test {
namespace {

Floats sweep() {
  Floats x = normal(997, 1, 3);
  for (float v = -12; v <= 12; v += 0.01f) x.push_back(v);
  for (float v : {0.0f, 1e-30f, -1e-30f, 1e-40f, 15.0f, -15.0f, 1e10f, -1e10f, 3e38f, -3e38f}) x.push_back(v);
  return x;
}

Floats forward(Lab& lab, const Floats& x, DType t) {
  Tensor in = lab.tensor({static_cast<int64_t>(x.size())}, x, t), y = lab.empty(in.shape(), t);
  ops::gelu_forward(lab.s, y, in);
  return lab.floats(y);
}

Floats backward(Lab& lab, const Floats& x, DType t) {
  const auto n = static_cast<int64_t>(x.size());
  Tensor in = lab.tensor({n}, x, t), dx = lab.empty({n}, t);
  ops::gelu_backward(lab.s, dx, lab.random({n}, 2, t), in);
  return lab.floats(dx);
}

TEST(Gelu, KnownValues) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);  // from the formula, evaluated with 30 digits
    expect_close(forward(lab, {-3, -1, 0, 0.5f, 1, 2}, DType::f32),
                 {-0.00363739208f, -0.158808009f, 0, 0.345714009f, 0.841191991f, 1.95459770f}, 1e-6);
  }
}

TEST(Gelu, MatchesReference) {
  for (DType t : {DType::f32, DType::bf16}) {
    const double tolerance = t == DType::f32 ? 2e-6 : epsilon(t);
    expect_same_as_reference([&](Lab& lab) { return forward(lab, sweep(), t); }, tolerance, "forward");
    expect_same_as_reference([&](Lab& lab) { return backward(lab, sweep(), t); }, 2 * tolerance, "backward");
    for (int64_t n : {0, 1, 7, 8, 9, 31})
      expect_same_as_reference([&](Lab& lab) { return forward(lab, normal(n, 3), t); }, tolerance);
  }
}

TEST(Gelu, KeepsRelativeAccuracyInTheLeftTail) {
  Lab fast, slow("reference");
  Floats x;
  for (float v = -6; v < -1; v += 0.013f) x.push_back(v);
  const Floats got = forward(fast, x, DType::f32), want = forward(slow, x, DType::f32);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(got[i] / want[i], 1, 1e-5) << x[i];
}

TEST(Gelu, NanStaysNan) {
  Lab lab;
  const Floats x(9, std::numeric_limits<float>::quiet_NaN());
  for (float y : forward(lab, x, DType::f32)) EXPECT_TRUE(std::isnan(y));
  for (float y : backward(lab, x, DType::f32)) EXPECT_TRUE(std::isnan(y));
}

TEST(Gelu, BackwardMayOverwriteItsInput) {
  for (DType t : {DType::f32, DType::bf16}) {
    Lab lab;
    Tensor x = lab.random({77}, 1, t), dy = lab.random({77}, 2, t), dx = lab.empty({77}, t);
    ops::gelu_backward(lab.s, dx, dy, x);
    ops::gelu_backward(lab.s, dy, dy, x);
    EXPECT_EQ(lab.floats(dx), lab.floats(dy));
  }
}

TEST(Gelu, ReferenceBackwardIsTheGradient) {
  std::vector<double> x = doubles(40, 1), dy = doubles(40, 2), y(40), dx(40);
  EpilogueKernels::reference()->gelu_backward(no_context(), ref(dx), ref(dy), ref(x), 40);
  auto loss = [&] {
    EpilogueKernels::reference()->gelu_forward(no_context(), ref(y), ref(x), 40);
    return dot(y, dy);
  };
  expect_gradient(x, dx, loss, 1e-7);
}

TEST(BiasBackward, TallAndWide) {
  for (auto [rows, cols] :
       std::initializer_list<std::pair<int64_t, int64_t>>{{1, 1}, {2000, 3}, {700, 70}, {3, 1500}}) {
    Lab lab;
    const Floats dy = normal(rows * cols, 1), start = normal(cols, 2);
    const Tensor d = lab.tensor({cols}, start);
    ops::bias_backward(lab.s, d, lab.tensor({rows, cols}, dy));
    Floats want;
    for (int64_t c = 0; c < cols; ++c) {
      double sum = start[static_cast<size_t>(c)];
      for (int64_t r = 0; r < rows; ++r) sum += dy[static_cast<size_t>(r * cols + c)];
      want.push_back(static_cast<float>(sum));
    }
    expect_close(lab.floats(d), want, 1e-6 * std::sqrt(static_cast<double>(rows)) + 1e-6);
  }
}

}  // namespace
}  // namespace sherd::test
