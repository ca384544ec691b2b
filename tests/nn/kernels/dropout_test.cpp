#include <sherd/nn/ops.h>

#include <limits>

#include "kernels/lab.h"

namespace sherd::test {
namespace {

Floats dropped(Lab& lab, const Shape& shape, DType t, float p, const DropoutKey& key, bool shifted = false) {
  Tensor x = lab.random(shape, 1, t), y = lab.empty(shape, t);
  if (shifted) x = lab.shifted(x), y = lab.shifted(y);
  ops::dropout(lab.s, y, x, p, key);
  return lab.floats(y);
}

const DropoutKey kKey{DropoutKey::make(7, 3, "blocks.0.mlp"), 1, 5};

TEST(Dropout, HasTheBitsOfTheReference) {
  for (DType t : {DType::f32, DType::bf16})
    for (const Shape& shape :
         std::initializer_list<Shape>{{0, 5}, {3, 0}, {9}, {1, 1}, {5, 7}, {33, 64}, {2, 3, 5}, {3, 4099}})
      for (const float p : {0.0f, 0.1f, 0.9f})
        for (const int64_t first :
             {int64_t{0}, (int64_t{1} << 32) - 1})  // rows on both sides of a word's end
          for (const bool shifted : {false, true})
            expect_bits_of_reference(
                [&](Lab& lab) {
                  return dropped(lab, shape, t, p, {kKey.key, 2, first}, shifted);
                },
                to_string(shape));
}

TEST(Dropout, AnElementDependsOnItsGlobalRowAlone) {
  Lab lab;
  Tensor x = lab.full({40, 6}, 1), whole = lab.empty({40, 6}), cut = lab.empty({40, 6});
  ops::dropout(lab.s, whole, x, 0.4f, kKey);
  for (auto [begin, end] :
       std::initializer_list<std::array<int64_t, 2>>{{0, 1}, {1, 17}, {17, 17}, {17, 40}}) {
    DropoutKey key = kKey;
    key.first_row += begin;
    ops::dropout(lab.s, cut.rows(begin, end), x.rows(begin, end), 0.4f, key);
  }
  EXPECT_EQ(lab.floats(cut), lab.floats(whole));
}

TEST(Dropout, DropsTheGivenShare) {
  Lab lab;
  const int64_t rows = 500, cols = 40;
  for (const float p : {0.05f, 0.5f, 0.9f}) {
    Tensor x = lab.full({rows, cols}, 1);
    ops::dropout(lab.s, x, x, p, kKey);  // in place
    double kept = 0;
    for (const float v : lab.floats(x)) {
      kept += v != 0;
      EXPECT_TRUE(v == 0 || v == 1 / (1 - p)) << v;
    }
    const double n = rows * cols;
    EXPECT_NEAR(kept / n, 1 - p, 4 * std::sqrt(p * (1 - p) / n));  // four standard deviations
  }
}

// A dropped element is 0 even where the input is none.
TEST(Dropout, DropsInfinities) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    Tensor x = lab.full({50, 8}, std::numeric_limits<double>::infinity());
    ops::dropout(lab.s, x, x, 0.5f, kKey);
    for (const float v : lab.floats(x)) EXPECT_FALSE(std::isnan(v));
  }
}

TEST(Dropout, RefusesWhatDoesNotFit) {
  Lab lab;
  const Tensor x = lab.full({2, 3}, 1), y = lab.empty({3, 2});
  EXPECT_THROW(ops::dropout(lab.s, y, x, 0.5f, kKey), ShapeMismatch);
  EXPECT_THROW(ops::dropout(lab.s, x, x, 1, kKey), InvalidArgument);
  EXPECT_THROW(ops::dropout(lab.s, x, x, -0.5f, kKey), InvalidArgument);
  EXPECT_THROW(ops::dropout(lab.s, x, x, 0.5f, {1, 0, -1}), InvalidArgument);
}

}  // namespace
}  // namespace sherd::test
