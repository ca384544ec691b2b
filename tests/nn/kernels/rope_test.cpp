#include <sherd/nn/ops.h>

#include <cmath>
#include <complex>
#include <functional>
#include <numbers>

#include "kernels/lab.h"

namespace sherd::test {
namespace {

struct RopeCase {
  int64_t batch, seq, heads, dim, rest, first;  // rest: columns that stay
  DType dtype = DType::f32;
};

std::string name(const RopeCase& c) {
  return "batch " + std::to_string(c.batch) + " seq " + std::to_string(c.seq) + " heads " +
         std::to_string(c.heads) + " dim " + std::to_string(c.dim) + " rest " + std::to_string(c.rest) +
         " first " + std::to_string(c.first) + " " + name_of(c.dtype);
}

const int64_t kRopeSizes[][6] = {
    {1, 1, 1, 2, 0, 0},          {2, 7, 3, 6, 5, 0},    {3, 33, 5, 8, 16, 3}, {1, 20, 2, 64, 64, 100000},
    {1, 9, 6, 128, 256, 131071}, {2, 5, 1, 256, 1, 12}, {1, 3, 2, 514, 0, 1}, {2, 0, 1, 4, 2, 0}};

std::vector<RopeCase> rope_cases() {
  std::vector<RopeCase> all;
  for (DType t : {DType::f32, DType::bf16})
    for (auto [b, s, h, d, r, f] : kRopeSizes) all.push_back({b, s, h, d, r, f, t});
  return all;
}

Tensor frequencies(Lab& lab, int64_t dim, double theta = 10000) {
  return lab.tensor({dim / 2}, ops::rope_frequencies(dim, theta));
}

// Both sides round the same angle; sine, cosine, two products and a sum err by some 2^-24 of |x| <= 4.5 each.
// bf16: one rounding, on either side of a tie.
double tolerance(DType t) { return t == DType::f32 ? 2e-6 : epsilon(t); }

TEST(Rope, QuarterTurnSwapsTheHalves) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    // A head of width 4, whose first pair turns by a quarter at each position and whose second stays; one
    // more column.
    const Tensor f = lab.tensor({2}, {std::numbers::pi_v<float> / 2, 0});
    const Tensor x = lab.tensor({3, 5}, {1, 2, 3, 4, 9, 1, 2, 3, 4, 9, 1, 2, 3, 4, 9}), y = lab.empty({3, 5});
    ops::rope(lab.s, y, x, f, 1, 1);
    expect_close(lab.floats(y), {1, 2, 3, 4, 9, -3, 2, 1, 4, 9, -1, 2, -3, 4, 9}, 1e-6);
    ops::rope(lab.s, y, x, f, 1, 1, 1, /*inverse=*/true);
    expect_close(lab.floats(y), {3, 2, -1, 4, 9, -1, 2, -3, 4, 9, -3, 2, 1, 4, 9}, 1e-6);
    ops::rope(lab.s, y, x, f, 3, 1, 1);  // three sequences of one row: all have position 1
    expect_close(lab.floats(y), {-3, 2, 1, 4, 9, -3, 2, 1, 4, 9, -3, 2, 1, 4, 9}, 1e-6);
  }
}

TEST(Rope, MatchesReferenceInPlaceAndNot) {
  for (const RopeCase& c : rope_cases())
    for (bool inverse : {false, true})
      expect_same_as_reference(
          [&](Lab& lab) {
            const Tensor x = lab.random({c.batch * c.seq, c.heads * c.dim + c.rest}, 1, c.dtype);
            const Tensor y = lab.empty(x.shape(), c.dtype), f = frequencies(lab, c.dim),
                         moved = lab.shifted(x);
            ops::rope(lab.s, y, x, f, c.batch, c.heads, c.first, inverse);
            ops::rope(lab.s, moved, moved, f, c.batch, c.heads, c.first, inverse);
            const Floats result = lab.floats(y), before = lab.floats(x);
            EXPECT_EQ(bits(result), bits(lab.floats(moved))) << name(c);
            for (int64_t i = 0; i < x.numel(); ++i)
              if (i % x.size(1) >= c.heads * c.dim) {
                EXPECT_EQ(result[static_cast<size_t>(i)], before[static_cast<size_t>(i)])
                    << name(c) << " element " << i;
              }
            return result;
          },
          tolerance(c.dtype), name(c));
}

TEST(Rope, ScaleIsAFactorOfWhatIsRotated) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const int64_t heads = 2, dim = 8, rest = 3, rows = 10;
    const Tensor x = lab.random({rows, heads * dim + rest}, 1), f = frequencies(lab, dim);
    const Tensor plain = lab.empty(x.shape()), scaled = lab.empty(x.shape());
    for (const bool inverse : {false, true}) {
      ops::rope(lab.s, plain, x, f, 1, heads, 3, inverse, dim);
      ops::rope(lab.s, scaled, x, f, 1, heads, 3, inverse, dim, 0.25f);
      Floats want = lab.floats(plain);
      for (int64_t i = 0; i < x.numel(); ++i)
        if (i % x.size(1) < heads * dim) want[static_cast<size_t>(i)] *= 0.25f;
      EXPECT_EQ(bits(lab.floats(scaled)), bits(want)) << "a power of two is exact";
    }
  }
}

// The rotated columns of each head as a tensor by themselves; the others stay.
TEST(Rope, RotatesTheFirstColumnsOfWiderHeads) {
  for (const char* kernels : {kFast, "reference"})
    for (const DType t : {DType::f32, DType::bf16})
      for (const auto& widths : std::initializer_list<std::array<int64_t, 2>>{{6, 4}, {32, 16}, {10, 2}}) {
        const int64_t head = widths[0], rotary = widths[1];
        Lab lab(kernels);
        const int64_t heads = 3, rows = 8, rest = 5;
        const Tensor x = lab.random({rows, heads * head + rest}, 1, t), y = lab.empty(x.shape(), t);
        const Tensor f = frequencies(lab, rotary), moved = lab.shifted(x);
        ops::rope(lab.s, y, x, f, 2, heads, 7, false, head);
        ops::rope(lab.s, moved, moved, f, 2, heads, 7, false, head);
        EXPECT_EQ(bits(lab.floats(y)), bits(lab.floats(moved)));
        const Floats in = lab.floats(x), out = lab.floats(y);
        Floats alone, want = in;
        const auto each = [&](auto visit) {
          for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < heads * rotary; ++c)
              visit(static_cast<size_t>(r * x.size(1) + c / rotary * head + c % rotary));
        };
        each([&](size_t i) { alone.push_back(in[i]); });
        const Tensor packed = lab.tensor({rows, heads * rotary}, alone, t);
        ops::rope(lab.s, packed, packed, f, 2, heads, 7);
        const Floats turned = lab.floats(packed);
        size_t next = 0;
        each([&](size_t i) { want[i] = turned[next++]; });
        EXPECT_EQ(bits(out), bits(want)) << kernels << " " << head;
      }
}

TEST(Rope, AgreesWithComplexProductsInDouble) {
  for (const RopeCase& c : rope_cases()) {
    Lab lab;
    const Tensor x = lab.random({c.batch * c.seq, c.heads * c.dim + c.rest}, 1, c.dtype);
    const Tensor y = lab.empty(x.shape(), c.dtype);
    ops::rope(lab.s, y, x, frequencies(lab, c.dim), c.batch, c.heads, c.first);
    const Floats f = ops::rope_frequencies(c.dim, 10000), in = lab.floats(x);
    Floats want = in;
    for (int64_t row = 0; row < x.size(0); ++row)
      for (int64_t h = 0; h < c.heads; ++h)
        for (int64_t d = 0; d < c.dim / 2; ++d) {
          const auto i = static_cast<size_t>(row * x.size(1) + h * c.dim + d),
                     j = i + static_cast<size_t>(c.dim / 2);
          const float angle = static_cast<float>(c.first + row % c.seq) * f[static_cast<size_t>(d)];
          const std::complex<double> turned =
              std::complex<double>(in[i], in[j]) * std::polar(1.0, double{angle});
          want[i] = static_cast<float>(turned.real());
          want[j] = static_cast<float>(turned.imag());
        }
    expect_close(lab.floats(y), want, tolerance(c.dtype), name(c));
  }
}

TEST(Rope, InverseTurnsBack) {
  for (const RopeCase& c : rope_cases()) {
    Lab lab;
    const Tensor x = lab.random({c.batch * c.seq, c.heads * c.dim + c.rest}, 1, c.dtype);
    const Tensor y = lab.empty(x.shape(), c.dtype), f = frequencies(lab, c.dim);
    ops::rope(lab.s, y, x, f, c.batch, c.heads, c.first);
    ops::rope(lab.s, y, y, f, c.batch, c.heads, c.first, /*inverse=*/true);
    // Two turns: in bf16 the first leaves an error of half an epsilon in each of a pair.
    expect_close(lab.floats(y), lab.floats(x), 2 * tolerance(c.dtype), name(c));
  }
}

TEST(Rope, ShapesAreChecked) {
  Lab lab;
  auto t = [&](Shape s, DType d = DType::f32) { return lab.empty(std::move(s), d); };
  const Tensor x = t({6, 10}), f = t({2});
  EXPECT_THROW(ops::rope(lab.s, t({6, 9}), x, f, 2, 2), ShapeMismatch);
  EXPECT_THROW(ops::rope(lab.s, t({6, 10}, DType::bf16), x, f, 2, 2), ShapeMismatch);
  EXPECT_THROW(ops::rope(lab.s, t({6, 10}), x, t({2}, DType::bf16), 2, 2), ShapeMismatch);
  EXPECT_THROW(ops::rope(lab.s, t({6, 10}), x, t({1, 2}), 2, 2), ShapeMismatch);
  EXPECT_THROW(ops::rope(lab.s, t({6, 10}), x, f, 4, 2), ShapeMismatch);
  EXPECT_THROW(ops::rope(lab.s, t({6, 10}), x, f, 2, 3), ShapeMismatch);
  EXPECT_THROW(ops::rope(lab.s, t({6, 10}), x, f, 0, 2), InvalidArgument);
  EXPECT_THROW(ops::rope(lab.s, t({6, 10}), x, f, 2, 0), InvalidArgument);
  EXPECT_THROW(ops::rope(lab.s, t({6, 10}), x, f, 2, 2, -1), InvalidArgument);
  const Tensor memory = t({70});
  EXPECT_THROW(ops::rope(lab.s, memory.flat(10, 70).view({6, 10}), memory.flat(0, 60).view({6, 10}), f, 2, 2),
               InvalidArgument);
  EXPECT_THROW(ops::rope_frequencies(7), InvalidArgument);
  EXPECT_THROW(ops::rope_frequencies(0), InvalidArgument);
  EXPECT_THROW(ops::rope_frequencies(8, 0), InvalidArgument);
}

TEST(Rope, ScalingsThatMakeNoFrequenciesAreRefused) {
  const RopeScaling llama3{.type = RopeType::llama3, .factor = 8, .original_max_position_embeddings = 8};
  const RopeScaling longrope{.type = RopeType::longrope,
                             .original_max_position_embeddings = 8,
                             .short_factor = {1, 1, 1, 1},
                             .long_factor = {1, 2, 3, 4}};
  const auto refused = [](RopeScaling s, const std::function<void(RopeScaling&)>& change,
                          double theta = 1e4) {
    EXPECT_EQ(ops::rope_problem(8, 1e4, s), "");
    change(s);
    EXPECT_NE(ops::rope_problem(8, theta, s), "");
    EXPECT_THROW(ops::rope_frequencies(8, theta, s), InvalidArgument);
  };
  refused(llama3, [](auto& s) { s.low_freq_factor = 4; });
  refused(llama3, [](auto& s) { s.factor = 0; });
  refused(llama3, [](auto& s) { s.original_max_position_embeddings = 0; });
  refused({.type = RopeType::linear, .factor = 2}, [](auto& s) { s.factor = 0; });
  refused({.type = RopeType::dynamic, .factor = 2}, [](auto& s) { s.factor = std::nan(""); });
  const RopeScaling yarn{.type = RopeType::yarn, .factor = 2, .original_max_position_embeddings = 8};
  refused(yarn, [](auto& s) { s.beta_slow = 33; });
  refused(yarn, [](auto& s) { s.factor = 0.5; });
  refused(
      yarn, [](auto&) {}, 1);
  refused(longrope, [](auto& s) { s.original_max_position_embeddings = 1; });
  refused(longrope, [](auto& s) { s.short_factor.pop_back(); });
  refused(longrope, [](auto& s) { s.long_factor[2] = 0; });
}

TEST(Rope, LengthChoosesTheFactorsOfLongrope) {
  const RopeScaling s{.type = RopeType::longrope,
                      .factor = 4,
                      .original_max_position_embeddings = 16,
                      .short_factor = {1, 1, 2},
                      .long_factor = {1, 4, 8}};
  const Floats plain = ops::rope_frequencies(6);
  EXPECT_EQ(ops::rope_frequencies(6, 1e4, s, 16), (Floats{plain[0], plain[1], plain[2] / 2}));
  EXPECT_EQ(ops::rope_frequencies(6, 1e4, s, 17), (Floats{plain[0], plain[1] / 4, plain[2] / 8}));
  EXPECT_NEAR(s.rotation_scale(), std::sqrt(1.5), 1e-15);  // 1 + ln 4 / ln 16
  EXPECT_EQ(s.score_scale(), 1);
}

TEST(Rope, FrequenciesAreScaledByWavelength) {
  const int64_t length = 8192;
  const Floats plain = ops::rope_frequencies(128, 500000),
               scaled = ops::rope_frequencies(
                   128, 500000,
                   {.type = RopeType::llama3, .factor = 8, .original_max_position_embeddings = length});
  ASSERT_EQ(plain.size(), 64u);
  EXPECT_EQ(plain[0], 1);
  int stay = 0, between = 0, eighth = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_NEAR(plain[i], std::pow(500000, -static_cast<double>(i) / 64), 1e-6 * plain[i]) << i;
    const double turns = length * double{plain[i]} / (2 * std::numbers::pi);  // within the original length
    if (turns > 4) {
      ++stay;
      EXPECT_EQ(scaled[i], plain[i]) << i;
    } else if (turns < 1) {
      ++eighth;
      EXPECT_EQ(scaled[i], plain[i] / 8) << i;
    } else {
      ++between;
      EXPECT_LT(scaled[i], plain[i]) << i;
      EXPECT_GT(scaled[i], plain[i] / 8) << i;
    }
  }
  EXPECT_GT(stay, 0);
  EXPECT_GT(between, 0);
  EXPECT_GT(eighth, 0);
}

}  // namespace
}  // namespace sherd::test
