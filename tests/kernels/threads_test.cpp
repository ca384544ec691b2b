// One thread and two give the same bits for every operation but gemm (whose product the library may split
// otherwise). Sizes are large enough for two threads to be used.
#include <sherd/kernels/squares/exact_sum.h>

#include "threads.h"

namespace sherd::test {
namespace {

TEST_F(Threads, Elementwise) {
  for (DType t : kTypes) {
    expect_same_bits([t](Lab& lab) {
      const int64_t n = 50003;
      Tensor x = lab.random({n}, 1, t), y = lab.random({n}, 2, t), f = lab.random({n}, 3),
             h = lab.empty({n}, DType::f16);
      ops::gelu_backward(lab.s, x, x, y);
      ops::gelu_forward(lab.s, y, y);
      ops::add(lab.s, x, x, y);
      ops::scale(lab.s, x, 0.7f);
      ops::scaled_add(lab.s, f, 0.3f, x);
      ops::scale_and_add(lab.s, f, 0.3f, 0.9f, f);
      ops::cast(lab.s, h, x);
      return Outputs{x, y, f, h, lab.full({n}, 0.1, t)};
    });
  }
}

TEST_F(Threads, Optimizers) {
  expect_same_bits([](Lab& lab) {
    const int64_t n = 70001;
    Tensor w = lab.random({n}, 1), m = lab.random({n}, 2), v = lab.full({n}, 0.5), g = lab.random({n}, 3);
    Tensor random = lab.empty({n});
    ops::adamw(lab.s, w, m, v, g, {});
    ops::random_normal(lab.s, random, 5, 1, "w", 0, 1);
    Tensor squares = lab.full({ExactSum::kWords}, 0, DType::i64), sum = lab.full({1}, 0, DType::f64);
    for (int i = 0; i < 3; ++i) ops::accumulate_squares(lab.s, squares, w);
    ops::accumulate_squares(lab.s, squares, lab.random({200001}, 4, DType::f32, 1e10f));
    ops::accumulate_sum(lab.s, sum, w);
    lab.s.synchronize();
    return Outputs{w, m, v, random, squares, sum};
  });
}

TEST_F(Threads, ProductsAgreeToRounding) {
  Lab one("cpu", 1), two("cpu", 2);
  auto run = [](Lab& lab) {
    Tensor x = lab.random({96, 130}, 1), gram = lab.empty({96, 96});
    ops::gemm(lab.s, gram, x, false, x, true);
    return lab.floats(gram);
  };
  expect_close(run(two), run(one), 1e-4);
}

}  // namespace
}  // namespace sherd::test
