#include <fmt/format.h>
#include <sherd/nn/ops.h>

#include "kernels/lab.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

struct Sizes {
  int64_t outer, n, inner;
};

Floats reduced(Lab& lab, Reduction op, const Sizes& z, DType t, DType out_type, double factor = 1,
               bool shifted = false) {
  Tensor x = lab.random({z.outer, z.n, z.inner}, 1, t), out = lab.empty({z.outer, z.inner}, out_type);
  if (shifted) x = lab.shifted(x);
  ops::reduce_dim(lab.s, op, out, x, z.outer, z.n, z.inner, factor);
  return lab.floats(out);
}

constexpr Sizes kSizes[] = {{1, 1, 1},    {3, 5, 1},    {3, 5, 4},     {1, 100003, 1},
                            {7, 2049, 1}, {1, 5000, 3}, {1, 3000, 64}, {2, 300, 700},
                            {600, 40, 1}, {5, 1, 9},    {1, 70, 2500}};

// A run of at most 512 numbers near 1 is fp32: 2^-24 of a partial sum near 2^5 for each, as random walks go 2^5 of them.
TEST(Reduction, SumsMatchReference) {
  for (const DType t : {DType::f32, DType::bf16})
    for (const Sizes& z : kSizes)
      expect_same_as_reference([&](Lab& lab) { return reduced(lab, Reduction::sum, z, t, DType::f32, 0.5); },
                               0x1p-14, fmt::format("{} x {} x {}", z.outer, z.n, z.inner));
}

TEST(Reduction, MaximaHaveTheBitsOfTheReference) {
  for (const DType t : {DType::f32, DType::bf16})
    for (const Sizes& z : kSizes)
      expect_bits_of_reference([&](Lab& lab) { return reduced(lab, Reduction::max, z, t, t); },
                               fmt::format("{} x {} x {}", z.outer, z.n, z.inner));
}

// Exact in any order: integers below 2^24, of which bf16 holds the small ones.
TEST(Reduction, SumsOfIntegersAreExact) {
  for (const char* kernels : {kFast, "reference"})
    for (const Sizes& z : {Sizes{1, 70000, 1}, {1, 9000, 5}, {3, 700, 300}}) {
      Lab lab(kernels);
      const Tensor x = lab.full({z.outer, z.n, z.inner}, 3, DType::bf16), out = lab.empty({z.outer, z.inner});
      ops::reduce_dim(lab.s, Reduction::sum, out, x, z.outer, z.n, z.inner);
      EXPECT_EQ(lab.floats(out),
                Floats(static_cast<size_t>(z.outer * z.inner), 3.0f * static_cast<float>(z.n)));
    }
}

TEST(Reduction, UnalignedInputHasTheSameBits) {
  for (const DType t : {DType::f32, DType::bf16})
    for (const Sizes& z : kSizes) {
      Lab lab;
      EXPECT_EQ(bits(reduced(lab, Reduction::sum, z, t, t)),
                bits(reduced(lab, Reduction::sum, z, t, t, 1, true)));
    }
}

TEST(Reduction, NanIsTheMaximum) {
  for (const char* kernels : {kFast, "reference"})
    for (const Sizes& z : {Sizes{1, 4, 1}, {1, 2, 2}}) {
      Lab lab(kernels);
      const Tensor x = lab.tensor({4}, {1, std::numeric_limits<float>::quiet_NaN(), 3, -kInf});
      const Tensor out = lab.empty({z.inner});
      ops::reduce_dim(lab.s, Reduction::max, out, x, z.outer, z.n, z.inner);
      EXPECT_TRUE(std::isnan(lab.floats(out).back()));
    }
}

TEST(Reduction, OverNothingIsZeroOrRefused) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const Tensor x = lab.empty({3, 0}), out = lab.full({3}, 9);
    ops::reduce_dim(lab.s, Reduction::sum, out, x, 3, 0, 1);
    EXPECT_EQ(lab.floats(out), (Floats{0, 0, 0}));
    EXPECT_THAT(message_of<ShapeMismatch>([&] { ops::reduce_dim(lab.s, Reduction::max, out, x, 3, 0, 1); }),
                HasSubstr("a maximum needs an element"));
    EXPECT_THAT(message_of<ShapeMismatch>([&] { ops::reduce_dim(lab.s, Reduction::sum, out, x, 2, 0, 1); }),
                HasSubstr("out is [3] (3 elements), must have 2 elements"));
  }
}

}  // namespace
}  // namespace sherd::test
