#include <sherd/nn/ops.h>

#include <limits>

#include "kernels/lab.h"

namespace sherd::test {
namespace {

/// y and dx one after the other.
Floats both_ways(Lab& lab, const Shape& shape, DType t, bool shifted = false) {
  Tensor x = lab.random(shape, 1, t, 3), dy = lab.random(shape, 2, t), y = lab.empty(shape, t),
         dx = lab.empty(shape, t);
  if (shifted)
    for (Tensor* each : {&x, &dy, &y, &dx}) *each = lab.shifted(*each);
  ops::softmax_forward(lab.s, y, x);
  ops::softmax_backward(lab.s, dx, dy, y);
  return lab.floats({y, dx});
}

TEST(Softmax, KnownRows) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const float inf = std::numeric_limits<float>::infinity(), third = std::log(3.0f);
    Tensor x = lab.tensor({3, 2}, {0, third, 1000, 1000, -inf, 5}), y = lab.empty({3, 2});
    ops::softmax_forward(lab.s, y, x);
    expect_close(lab.floats(y), {0.25f, 0.75f, 0.5f, 0.5f, 0, 1}, 1e-6);
    Tensor dx = lab.empty({3, 2});
    ops::softmax_backward(lab.s, dx, lab.tensor({3, 2}, {1, 0, 1, 1, 7, 0}), y);
    expect_close(lab.floats(dx), {0.1875f, -0.1875f, 0, 0, 0, 0}, 1e-6);
  }
}

TEST(Softmax, MatchesReference) {
  for (DType t : {DType::f32, DType::bf16})
    for (const Shape& shape : std::initializer_list<Shape>{
             {0, 5}, {3, 0}, {1}, {7}, {2, 3, 5}, {33, 65}, {700, 64}, {5, 1030}, {3, 9000}, {2, 40011}})
      expect_same_as_reference([&](Lab& lab) { return both_ways(lab, shape, t); },
                               t == DType::f32 ? 2e-6 : 2 * epsilon(t), to_string(shape));
}

TEST(Softmax, UnalignedRowsHaveTheBitsOfAlignedOnes) {
  for (DType t : {DType::f32, DType::bf16})
    for (int64_t cols : {64, 2048, 20000}) {
      Lab lab;
      EXPECT_EQ(bits(both_ways(lab, {3, cols}, t)), bits(both_ways(lab, {3, cols}, t, true))) << cols;
    }
}

TEST(Softmax, MayOverwriteItsInput) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    Tensor x = lab.random({5, 300}, 1), y = lab.empty({5, 300}), dy = lab.random({5, 300}, 2),
           dx = lab.empty({5, 300});
    ops::softmax_forward(lab.s, y, x);
    ops::softmax_forward(lab.s, x, x);
    EXPECT_EQ(lab.floats(x), lab.floats(y));
    ops::softmax_backward(lab.s, dx, dy, y);
    ops::softmax_backward(lab.s, dy, dy, y);
    EXPECT_EQ(lab.floats(dx), lab.floats(dy));
  }
}

TEST(Softmax, ReferenceBackwardIsTheGradient) {
  std::vector<double> x = doubles(15, 1), dy = doubles(15, 2), y(15), dx(15);
  SoftmaxArgs a{.rows = 3, .cols = 5, .x = ref(x), .y = ref(y), .dy = ref(dy), .dx = ref(dx)};
  auto loss = [&] {
    SoftmaxKernels::reference()->softmax_forward(no_context(), a);
    return dot(y, dy);
  };
  loss();
  SoftmaxKernels::reference()->softmax_backward(no_context(), a);
  expect_gradient(x, dx, loss, 1e-7);
}

}  // namespace
}  // namespace sherd::test
