#include <sherd/nn/ops.h>

#include <limits>

#include "kernels/lab.h"

namespace sherd::test {
namespace {

Floats sweep() {
  Floats x = normal(997, 1, 3);
  for (float v = -12; v <= 12; v += 0.01f) x.push_back(v);
  for (float v : {0.0f, 1e-30f, -1e-30f, 1e-40f, 15.0f, -15.0f, 1e10f, -1e10f, 3e38f, -3e38f}) x.push_back(v);
  return x;
}

constexpr Activation kAll[] = {Activation::gelu_erf, Activation::silu, Activation::relu};

Floats forward(Lab& lab, Activation f, const Floats& x, DType t) {
  Tensor in = lab.tensor({static_cast<int64_t>(x.size())}, x, t), y = lab.empty(in.shape(), t);
  ops::activation_forward(lab.s, f, y, in);
  return lab.floats(y);
}

Floats backward(Lab& lab, Activation f, const Floats& x, DType t) {
  const auto n = static_cast<int64_t>(x.size());
  Tensor in = lab.tensor({n}, x, t), dx = lab.empty({n}, t);
  ops::activation_backward(lab.s, f, dx, lab.random({n}, 2, t), in);
  return lab.floats(dx);
}

TEST(Activations, KnownValues) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);  // from the formulas, evaluated with 30 digits
    const Floats x = {-3, -1, 0, 0.5f, 1, 2};
    expect_close(forward(lab, Activation::gelu_erf, x, DType::f32),
                 {-0.00404969410f, -0.158655254f, 0, 0.345731230f, 0.841344746f, 1.95449974f}, 1e-6);
    expect_close(forward(lab, Activation::silu, x, DType::f32),
                 {-0.142277620f, -0.268941421f, 0, 0.311229666f, 0.731058579f, 1.76159416f}, 1e-6);
    EXPECT_EQ(forward(lab, Activation::relu, x, DType::f32), (Floats{0, 0, 0, 0.5f, 1, 2}));
  }
}

TEST(Activations, MatchReference) {
  for (Activation f : kAll)
    for (DType t : {DType::f32, DType::bf16}) {
      const double tolerance = t == DType::f32 ? 2e-6 : epsilon(t);  // as Gelu
      const std::string what = std::to_string(static_cast<int>(f));
      expect_same_as_reference([&](Lab& lab) { return forward(lab, f, sweep(), t); }, tolerance,
                               "forward " + what);
      expect_same_as_reference([&](Lab& lab) { return backward(lab, f, sweep(), t); }, 2 * tolerance,
                               "backward " + what);
      for (int64_t n : {0, 1, 7, 8, 9, 31})
        expect_same_as_reference([&](Lab& lab) { return forward(lab, f, normal(n, 3), t); }, tolerance, what);
    }
}

TEST(Activations, KeepRelativeAccuracyInTheLeftTail) {
  Lab fast, slow("reference");
  Floats x;
  for (float v = -6; v < -1; v += 0.013f) x.push_back(v);
  for (Activation f : {Activation::gelu_erf, Activation::silu}) {
    const Floats got = forward(fast, f, x, DType::f32), want = forward(slow, f, x, DType::f32);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(got[i] / want[i], 1, 1e-5) << x[i];
  }
}

TEST(Activations, NanStaysNan) {
  Lab lab;
  const Floats x(9, std::numeric_limits<float>::quiet_NaN());
  for (Activation f : kAll) {
    for (float y : forward(lab, f, x, DType::f32)) EXPECT_TRUE(std::isnan(y));
    if (f == Activation::relu) continue;  // whose slope is 1 there, as PyTorch's
    for (float y : backward(lab, f, x, DType::f32)) EXPECT_TRUE(std::isnan(y));
  }
}

TEST(Activations, BackwardMayOverwriteItsInput) {
  for (Activation f : kAll) {
    Lab lab;
    Tensor x = lab.random({77}, 1), dy = lab.random({77}, 2), dx = lab.empty({77});
    ops::activation_backward(lab.s, f, dx, dy, x);
    ops::activation_backward(lab.s, f, dy, dy, x);
    EXPECT_EQ(lab.floats(dx), lab.floats(dy));
  }
}

TEST(Activations, ReferenceBackwardIsTheGradient) {
  for (Activation f : kAll) {
    std::vector<double> x = doubles(40, 1), dy = doubles(40, 2), y(40), dx(40);
    ActivationKernels::reference()->activation_backward(no_context(), f, ref(dx), ref(dy), ref(x), 40);
    auto loss = [&] {
      ActivationKernels::reference()->activation_forward(no_context(), f, ref(y), ref(x), 40);
      return dot(y, dy);
    };
    expect_gradient(x, dx, loss, 1e-7);
  }
}

/// y, dgate and dup one after another; gate and up side by side give the same.
Floats gated(Lab& lab, int64_t rows, int64_t cols, DType t, bool packed, bool shifted = false) {
  const Floats g = normal(rows * cols, 1, 3), u = normal(rows * cols, 2);
  Tensor dy = lab.random({rows, cols}, 3, t), y = lab.empty({rows, cols}, t);
  Floats all;
  const auto note = [&](const Floats& f) { all.insert(all.end(), f.begin(), f.end()); };
  if (packed) {
    Floats both;
    for (int64_t r = 0; r < rows; ++r)
      for (const Floats* f : {&g, &u})
        both.insert(both.end(), f->begin() + r * cols, f->begin() + (r + 1) * cols);
    Tensor gate_up = lab.tensor({rows, 2 * cols}, both, t);
    if (shifted)
      for (Tensor* x : {&gate_up, &dy, &y}) *x = lab.shifted(*x);
    ops::swiglu_forward(lab.s, y, gate_up);
    note(lab.floats(y));
    ops::swiglu_backward(lab.s, gate_up, dy, gate_up);  // in place
    const Floats d = lab.floats(gate_up);
    for (const int64_t half : {0, 1})
      for (int64_t r = 0; r < rows; ++r)
        all.insert(all.end(), d.begin() + (2 * r + half) * cols, d.begin() + (2 * r + half + 1) * cols);
    return all;
  }
  Tensor gate = lab.tensor({rows, cols}, g, t), up = lab.tensor({rows, cols}, u, t);
  if (shifted)
    for (Tensor* x : {&gate, &up, &dy, &y}) *x = lab.shifted(*x);
  ops::swiglu_forward(lab.s, y, gate, up);
  note(lab.floats(y));
  ops::swiglu_backward(lab.s, gate, up, dy, gate, up);
  note(lab.floats(gate));
  note(lab.floats(up));
  return all;
}

TEST(Swiglu, MatchesReference) {
  for (DType t : {DType::f32, DType::bf16})
    for (auto [rows, cols] : std::initializer_list<std::array<int64_t, 2>>{
             {0, 5}, {1, 1}, {3, 7}, {5, 64}, {33, 65}, {2, 4000}, {700, 8}})
      for (const bool packed : {false, true})
        expect_same_as_reference([&, r = rows, c = cols](Lab& lab) { return gated(lab, r, c, t, packed); },
                                 t == DType::f32 ? 4e-6 : 2 * epsilon(t),  // two factors, each as Gelu's
                                 std::to_string(rows) + "x" + std::to_string(cols));
}

TEST(Swiglu, PackedUnalignedAndSeparateHaveTheSameBits) {
  for (DType t : {DType::f32, DType::bf16})
    for (int64_t cols : {5, 64}) {
      Lab lab;
      const auto plain = bits(gated(lab, 9, cols, t, false));
      EXPECT_EQ(bits(gated(lab, 9, cols, t, true)), plain) << cols;
      EXPECT_EQ(bits(gated(lab, 9, cols, t, true, true)), plain) << cols;
      EXPECT_EQ(bits(gated(lab, 9, cols, t, false, true)), plain) << cols;
    }
}

TEST(Swiglu, ReferenceBackwardIsTheGradient) {
  std::vector<double> x = doubles(40, 1), dy = doubles(20, 2), y(20), dx(40);
  SwigluArgs a{
      .rows = 4, .cols = 5, .stride = 10, .gate = ref(x), .up = {x.data() + 5, DType::f64}, .y = ref(y)};
  a.dy = ref(dy);
  a.dgate = ref(dx);
  a.dup = {dx.data() + 5, DType::f64};
  ActivationKernels::reference()->swiglu_backward(no_context(), a);
  auto loss = [&] {
    ActivationKernels::reference()->swiglu_forward(no_context(), a);
    return dot(y, dy);
  };
  expect_gradient(x, dx, loss, 1e-7);
}

}  // namespace
}  // namespace sherd::test
