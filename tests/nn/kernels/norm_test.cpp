#include <sherd/nn/ops.h>

#include "kernels/lab.h"

namespace sherd::test {
namespace {

constexpr float kEps = 1e-5f;

TEST(RmsNorm, KnownRow) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    Tensor x = lab.tensor({1, 2}, {3, 4}), w = lab.tensor({2}, {1, 2}), y = lab.empty({1, 2}),
           rstd = lab.empty({1});
    ops::rms_norm_forward(lab.s, y, rstd, x, w, 0);
    const float r = 1 / std::sqrt(12.5f);
    expect_close(lab.floats(rstd), {r}, 1e-6);
    expect_close(lab.floats(y), {3 * r, 8 * r}, 1e-6);
  }
}

/// y, rstd, dx and dw one after the other.
Floats both_ways(Lab& lab, int64_t rows, int64_t cols, DType dtype, bool shifted = false) {
  Tensor x = lab.random({rows, cols}, 1, dtype), w = lab.random({cols}, 2, dtype),
         dy = lab.random({rows, cols}, 3, dtype);
  Tensor y = lab.empty({rows, cols}, dtype), dx = lab.empty({rows, cols}, dtype), rstd = lab.empty({rows});
  Tensor dw = lab.full({cols}, 1);  // adds
  if (shifted)
    for (Tensor* t : {&x, &w, &dy, &y, &dx, &rstd, &dw}) *t = lab.shifted(*t);
  ops::rms_norm_forward(lab.s, y, rstd, x, w, kEps);
  ops::rms_norm_backward(lab.s, dx, dw, dy, x, w, rstd);
  return lab.floats({y, rstd, dx, dw});
}

const int64_t kRmsNormSizes[][2] = {{0, 5},     {1, 1},    {3, 7},    {9, 64},   {33, 65},  {20, 200},
                                    {100, 129}, {700, 64}, {5, 1030}, {3, 4100}, {3, 9000}, {2, 20011}};

TEST(RmsNorm, MatchesReference) {
  for (DType t : {DType::f32, DType::bf16})
    for (auto [rows, cols] : kRmsNormSizes)
      expect_same_as_reference([&, r = rows, c = cols](Lab& lab) { return both_ways(lab, r, c, t); },
                               t == DType::f32 ? 1e-5 : 2 * epsilon(t),
                               std::to_string(rows) + "x" + std::to_string(cols));
}

TEST(RmsNorm, UnalignedRowsHaveTheBitsOfAlignedOnes) {
  for (DType t : {DType::f32, DType::bf16})
    for (int64_t cols : {64, 1024, 2048, 20000}) {
      Lab lab;
      EXPECT_EQ(bits(both_ways(lab, 3, cols, t)), bits(both_ways(lab, 3, cols, t, true))) << cols;
    }
}

TEST(RmsNorm, BackwardMayOverwriteItsInput) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    Tensor x = lab.random({5, 11}, 1), w = lab.random({11}, 2), dy = lab.random({5, 11}, 3),
           rstd = lab.random({5}, 4);
    Tensor dx = lab.empty({5, 11}), dw = lab.full({11}, 0), dw2 = lab.full({11}, 0);
    ops::rms_norm_backward(lab.s, dx, dw, dy, x, w, rstd);
    ops::rms_norm_backward(lab.s, dy, dw2, dy, x, w, rstd);
    EXPECT_EQ(lab.floats(dx), lab.floats(dy));
    EXPECT_EQ(lab.floats(dw), lab.floats(dw2));
  }
}

/// Expects that backward with an addend, elsewhere or in place, has the bits of backward and ops::add():
/// backward(dx, dw, addend).
template <class F>
void expect_added(Lab& lab, int64_t rows, int64_t cols, DType t, bool shifted, F backward) {
  Tensor addend = lab.random({rows, cols}, 5, t), dx = lab.empty({rows, cols}, t);
  if (shifted) addend = lab.shifted(addend);
  const Tensor dw = lab.full({cols}, 1), dw2 = lab.full({cols}, 1), dw3 = lab.full({cols}, 1);
  const Tensor sum = lab.empty({rows, cols}, t);
  backward(dx, dw, Tensor());
  ops::add(lab.s, sum, addend, dx);
  backward(dx, dw2, addend);
  backward(addend, dw3, addend);
  for (const Tensor& got : {dx, addend}) EXPECT_EQ(bits(lab.floats(got)), bits(lab.floats(sum))) << cols;
  for (const Tensor& got : {dw2, dw3}) EXPECT_EQ(bits(lab.floats(got)), bits(lab.floats(dw))) << cols;
}

TEST(Norms, BackwardAddsAsASumOfItsOwn) {
  for (const char* kernels : {kFast, "reference"})
    for (DType t : {DType::f32, DType::bf16})
      for (const bool shifted : {false, true})
        for (int64_t cols : {7, 64, 1024, 20000}) {
          constexpr int64_t kRows = 3;
          Lab lab(kernels);
          const Tensor x = lab.random({kRows, cols}, 1, t), w = lab.random({cols}, 2, t),
                       dy = lab.random({kRows, cols}, 3, t), mean = lab.random({kRows}, 4),
                       rstd = lab.full({kRows}, 0.7);
          expect_added(lab, kRows, cols, t, shifted,
                       [&](const Tensor& dx, const Tensor& dw, const Tensor& addend) {
                         ops::rms_norm_backward(lab.s, dx, dw, dy, x, w, rstd, addend);
                       });
          expect_added(lab, kRows, cols, t, shifted,
                       [&](const Tensor& dx, const Tensor& dw, const Tensor& addend) {
                         ops::layer_norm_backward(lab.s, dx, dw, dy, x, w, mean, rstd, addend);
                       });
        }
}

TEST(RmsNorm, ReferenceBackwardIsTheGradient) {
  const int64_t rows = 3, cols = 5;
  std::vector<double> x = doubles(rows * cols, 1), w = doubles(cols, 2), dy = doubles(rows * cols, 3);
  std::vector<double> y(x.size()), dx(x.size());
  std::vector<double> rstd(3), dw(5, 0);
  RmsNormArgs a{.rows = rows, .cols = cols, .eps = kEps, .x = ref(x), .w = ref(w), .y = ref(y)};
  a.rstd = ref(rstd);
  a.dy = ref(dy);
  a.dx = ref(dx);
  a.dw = ref(dw);
  auto loss = [&] {
    NormKernels::reference()->rms_norm_forward(no_context(), a);
    return dot(y, dy);
  };
  loss();
  NormKernels::reference()->rms_norm_backward(no_context(), a);
  expect_gradient(x, dx, loss, 1e-7);
  expect_gradient(w, dw, loss, 1e-7);
}

/// Same as both_ways(), by columns in `parts` equal parts whose sums are added.
Floats in_parts(Lab& lab, int64_t rows, int64_t cols, DType t, int64_t parts) {
  const int64_t width = cols / parts;
  const Tensor y = lab.empty({rows, cols}, t), dx = lab.empty({rows, cols}, t);
  const Tensor rstd = lab.empty({rows}), dw = lab.full({cols}, 1);
  const Tensor x = lab.random({rows, cols}, 1, t), w = lab.random({cols}, 2, t),
               dy = lab.random({rows, cols}, 3, t), part = lab.empty({rows, width}, t);
  const auto part_of = [&](const Tensor& all, int64_t i) {
    const Tensor columns = lab.empty({rows, width}, t);
    ops::strided_copy(lab.s, columns, width, all.flat(i * width, all.numel()), cols, rows, width);
    return columns;
  };
  const auto weights = [&](const Tensor& all, int64_t i) { return all.flat(i * width, (i + 1) * width); };
  const auto summed = [&](bool backward) {
    const Tensor sums = lab.full({rows}, 0), more = lab.empty({rows});
    for (int64_t i = 0; i < parts; ++i) {
      backward ? ops::rms_norm_sums(lab.s, more, part_of(x, i), part_of(dy, i), weights(w, i))
               : ops::rms_norm_sums(lab.s, more, part_of(x, i));
      ops::add(lab.s, sums, sums, more);
    }
    return ops::WholeRows{sums, cols};
  };
  const ops::WholeRows squares = summed(false), dots = summed(true);
  for (int64_t i = 0; i < parts; ++i) {
    const auto put = [&](const Tensor& all) {
      ops::strided_copy(lab.s, all.flat(i * width, all.numel()), cols, part, width, rows, width);
    };
    ops::rms_norm_forward(lab.s, part, rstd, part_of(x, i), weights(w, i), kEps, squares);
    put(y);
    ops::rms_norm_backward(lab.s, part, weights(dw, i), part_of(dy, i), part_of(x, i), weights(w, i), rstd,
                           {}, dots);
    put(dx);
  }
  return lab.floats({y, rstd, dx, dw});
}

TEST(RmsNorm, PartsOfTheColumnsGiveWhatWholeRowsGive) {
  for (const char* kernels : {kFast, "reference"})
    for (DType t : {DType::f32, DType::bf16})
      for (auto [rows, cols, parts] : std::initializer_list<std::array<int64_t, 3>>{
               {3, 8, 1}, {3, 8, 2}, {9, 66, 3}, {33, 2080, 2}, {2, 16400, 4}}) {
        Lab lab(kernels), whole("reference");
        expect_close(in_parts(lab, rows, cols, t, parts), both_ways(whole, rows, cols, t),
                     t == DType::f32 ? 1e-5 : 2 * epsilon(t),
                     std::to_string(rows) + "x" + std::to_string(cols));
      }
}

TEST(LayerNorm, KnownRow) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    Tensor x = lab.tensor({1, 2}, {3, 5}), w = lab.tensor({2}, {1, 2}), bias = lab.tensor({2}, {10, 20}),
           y = lab.empty({1, 2}), mean = lab.empty({1}), rstd = lab.empty({1});
    ops::layer_norm_forward(lab.s, y, mean, rstd, x, w, bias, 0);
    expect_close(lab.floats(mean), {4}, 1e-6);
    expect_close(lab.floats(rstd), {1}, 1e-6);
    expect_close(lab.floats(y), {9, 22}, 1e-6);
    ops::layer_norm_forward(lab.s, y, mean, rstd, x, w, Tensor(), 0);
    expect_close(lab.floats(y), {-1, 2}, 1e-6);
  }
}

/// y, mean, rstd, dx and dw one after the other, of rows around `center`.
Floats layer_norm_both_ways(Lab& lab, int64_t rows, int64_t cols, DType dtype, bool biased, float center = 0,
                            bool shifted = false) {
  Floats values = normal(rows * cols, 1);
  for (float& v : values) v += center;
  Tensor x = lab.tensor({rows, cols}, values, dtype), w = lab.random({cols}, 2, dtype),
         dy = lab.random({rows, cols}, 3, dtype), bias = lab.random({cols}, 4, dtype);
  Tensor y = lab.empty({rows, cols}, dtype), dx = lab.empty({rows, cols}, dtype), mean = lab.empty({rows}),
         rstd = lab.empty({rows}), dw = lab.full({cols}, 1);  // adds
  if (shifted)
    for (Tensor* t : {&x, &w, &dy, &bias, &y, &dx, &mean, &rstd, &dw}) *t = lab.shifted(*t);
  ops::layer_norm_forward(lab.s, y, mean, rstd, x, w, biased ? bias : Tensor(), kEps);
  ops::layer_norm_backward(lab.s, dx, dw, dy, x, w, mean, rstd);
  return lab.floats({y, mean, rstd, dx, dw});
}

const int64_t kLayerNormSizes[][2] = {{0, 5},     {1, 1},    {3, 7},    {9, 64},   {33, 65},
                                      {100, 129}, {700, 64}, {5, 1030}, {3, 4100}, {2, 20011}};

// dw adds `rows` values near 1 up: partial sums are near sqrt(rows), each addition errs by 2^-24 of one, and as many
// errors again add up like the square root of their number.
TEST(LayerNorm, MatchesReference) {
  for (DType t : {DType::f32, DType::bf16})
    for (auto [rows, cols] : kLayerNormSizes)
      for (const bool biased : {false, true})
        expect_same_as_reference(
            [&, r = rows, c = cols](Lab& lab) { return layer_norm_both_ways(lab, r, c, t, biased); },
            t == DType::f32 ? std::max(1e-5, static_cast<double>(rows) * 0x1p-24) : 2 * epsilon(t),
            std::to_string(rows) + "x" + std::to_string(cols));
}

// A mean of 1000 deviations: its square would take 20 of the 24 bits. The mean itself errs by about 2^-24 of it, and a
// normalised element by as many deviations.
TEST(LayerNorm, ALargeMeanCostsNoMoreThanItsRounding) {
  expect_same_as_reference([](Lab& lab) { return layer_norm_both_ways(lab, 5, 64, DType::f32, true, 1000); },
                           1000 * 4 * 0x1p-24);
}

TEST(LayerNorm, UnalignedRowsHaveTheBitsOfAlignedOnes) {
  for (DType t : {DType::f32, DType::bf16})
    for (int64_t cols : {64, 1024, 20000}) {
      Lab lab;
      EXPECT_EQ(bits(layer_norm_both_ways(lab, 3, cols, t, true)),
                bits(layer_norm_both_ways(lab, 3, cols, t, true, 0, true)))
          << cols;
    }
}

TEST(LayerNorm, BackwardMayOverwriteItsInput) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    Tensor x = lab.random({5, 11}, 1), w = lab.random({11}, 2), dy = lab.random({5, 11}, 3),
           mean = lab.random({5}, 4), rstd = lab.random({5}, 5);
    Tensor dx = lab.empty({5, 11}), dw = lab.full({11}, 0), dw2 = lab.full({11}, 0);
    ops::layer_norm_backward(lab.s, dx, dw, dy, x, w, mean, rstd);
    ops::layer_norm_backward(lab.s, dy, dw2, dy, x, w, mean, rstd);
    EXPECT_EQ(lab.floats(dx), lab.floats(dy));
    EXPECT_EQ(lab.floats(dw), lab.floats(dw2));
  }
}

TEST(LayerNorm, ReferenceBackwardIsTheGradient) {
  const int64_t rows = 3, cols = 5;
  std::vector<double> x = doubles(rows * cols, 1), w = doubles(cols, 2), dy = doubles(rows * cols, 3);
  std::vector<double> y(x.size()), dx(x.size()), mean(3), rstd(3), dw(5, 0);
  LayerNormArgs a{.rows = rows, .cols = cols, .eps = kEps, .x = ref(x), .w = ref(w), .y = ref(y)};
  a.mean = ref(mean);
  a.rstd = ref(rstd);
  a.dy = ref(dy);
  a.dx = ref(dx);
  a.dw = ref(dw);
  auto loss = [&] {
    NormKernels::reference()->layer_norm_forward(no_context(), a);
    return dot(y, dy);
  };
  loss();
  NormKernels::reference()->layer_norm_backward(no_context(), a);
  expect_gradient(x, dx, loss, 1e-6);  // third derivatives near 100, times h^2 / 6
  expect_gradient(w, dw, loss, 1e-7);
}

}  // namespace
}  // namespace sherd::test
