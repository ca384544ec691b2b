#include <sherd/nn/ops.h>

#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "kernels/lab.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using ops::StridedView;

constexpr MapFunction kUnary[] = {MapFunction::copy, MapFunction::exp,  MapFunction::log,
                                  MapFunction::sqrt, MapFunction::tanh, MapFunction::sigmoid};
constexpr MapFunction kBinary[] = {
    MapFunction::add,   MapFunction::subtract,   MapFunction::multiply,   MapFunction::divide,
    MapFunction::power, MapFunction::maximum,    MapFunction::less,       MapFunction::less_equal,
    MapFunction::equal, MapFunction::sqrt_slope, MapFunction::tanh_slope, MapFunction::sigmoid_slope};
constexpr MapFunction kTernary[] = {MapFunction::where, MapFunction::divide_slope, MapFunction::power_base,
                                    MapFunction::power_exponent, MapFunction::maximum_share};

/// Quarters from 1/4 to 4, so that operands are equal now and then and logarithms finite.
Tensor quarters(Lab& lab, const Shape& shape, unsigned seed, DType t) {
  Floats values = normal(numel_of(shape), seed, 2);
  for (float& v : values) v = std::min(4.0f, std::floor(std::abs(v) * 4 + 1) / 4);
  return lab.tensor(shape, values, t);
}

Floats mapped(Lab& lab, MapFunction f, const Shape& shape, const std::vector<ops::MapInput>& in, DType t) {
  const Tensor out = lab.empty(shape, t);
  ops::map(lab.s, f, ops::dense(out), in);
  return lab.floats(out);
}

// exp and powers of a f32 argument near 16 err by 3e-7; bf16 rounds once.
double map_tolerance(DType t) { return t == DType::f32 ? 4e-6 : epsilon(t); }

TEST(Strided, FunctionsMatchReference) {
  for (const DType t : {DType::f32, DType::bf16})
    for (const int64_t n : {0, 1, 7, 64, 1000, 40001}) {
      const auto compare = [&](MapFunction f, size_t count) {
        expect_same_as_reference(
            [&](Lab& lab) {
              std::vector<ops::MapInput> in;
              for (size_t i = 0; i < count; ++i)
                in.push_back(quarters(lab, {n}, static_cast<unsigned>(i + 1), t));
              return mapped(lab, f, {n}, in, t);
            },
            map_tolerance(t), name_of(f));
      };
      for (const MapFunction f : kUnary) compare(f, 1);
      for (const MapFunction f : kBinary) compare(f, 2);
      for (const MapFunction f : kTernary) compare(f, 3);
    }
}

// One rounding each: f32 has the bits of any correct implementation.
TEST(Strided, ArithmeticHasTheBitsOfTheReference) {
  for (const MapFunction f : {MapFunction::add, MapFunction::subtract, MapFunction::multiply,
                              MapFunction::divide, MapFunction::maximum, MapFunction::less})
    for (const DType t : {DType::f32, DType::bf16})
      expect_bits_of_reference(
          [&](Lab& lab) {
            return mapped(lab, f, {5003}, {lab.random({5003}, 1, t), lab.random({5003}, 2, t)}, t);
          },
          name_of(f));
}

TEST(Strided, KnownEdges) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const Tensor a = lab.tensor({4}, {nan, 1, 0, -1}), b = lab.tensor({4}, {0, nan, 0, 2});
    const Floats most = mapped(lab, MapFunction::maximum, {4}, {a, b}, DType::f32);
    EXPECT_TRUE(std::isnan(most[0]) && std::isnan(most[1]));
    EXPECT_EQ(most[3], 2);
    EXPECT_EQ(mapped(lab, MapFunction::where, {4}, {b, a, 7.0}, DType::f32)[2], 7);
    EXPECT_EQ(mapped(lab, MapFunction::maximum_share, {4}, {6.0, b, a}, DType::f32)[2], 3);
    EXPECT_EQ(mapped(lab, MapFunction::power_exponent, {4}, {6.0, 0.0, b}, DType::f32)[3], 0);
    EXPECT_EQ(mapped(lab, MapFunction::equal, {4}, {a, b}, DType::f32), (Floats{0, 0, 1, 0}));
  }
}

/// Operands of each kind: dense, repeated along dimensions, permuted, sliced, one number.
Floats of_views(Lab& lab, const Shape& shape, DType t) {
  using ops::dense;
  const int64_t a = shape[0], b = shape[1], c = shape[2];
  const Tensor turned = lab.random({c, a, b}, 1, t), wide = lab.random({a, 2 * b, c + 1}, 2, t),
               row = lab.random({c}, 3, t), column = lab.random({a, 1, 1}, 4, t),
               last = lab.random({b, c, a}, 7, t);
  Floats all;
  const auto note = [&](const std::vector<ops::MapInput>& in) {
    const Floats f = mapped(lab, MapFunction::add, shape, in, t);
    all.insert(all.end(), f.begin(), f.end());
  };
  const StridedView other_way = ops::permuted(dense(turned), {1, 2, 0});
  const StridedView part = ops::sliced(ops::sliced(dense(wide), 1, 1, 2 * b, 2), 2, 1, c + 1);
  note({other_way, part});
  note({part, ops::broadcast(dense(row), shape)});
  note({ops::broadcast(dense(column), shape), other_way});
  note({ops::permuted(dense(last), {2, 0, 1}), 0.5});
  note({lab.random(shape, 5, t), ops::broadcast(dense(row), shape)});
  // Into an output with another order of dimensions.
  const Tensor flipped = lab.empty({c, b, a}, t);
  ops::map(lab.s, MapFunction::add, ops::permuted(dense(flipped), {2, 1, 0}),
           {lab.random(shape, 6, t), other_way});
  const Floats of_flipped = lab.floats(flipped);
  all.insert(all.end(), of_flipped.begin(), of_flipped.end());
  // Into a part of a tensor: the rest stays.
  const Tensor into = lab.full({a, c, 2 * b}, 9, t);
  ops::map(lab.s, MapFunction::copy, ops::permuted(ops::sliced(dense(into), 2, 0, 2 * b, 2), {0, 2, 1}),
           {part});
  const Floats f = lab.floats(into);
  all.insert(all.end(), f.begin(), f.end());
  return all;
}

TEST(Strided, ViewsHaveTheBitsOfTheReference) {
  for (const DType t : {DType::f32, DType::bf16})
    for (const Shape& shape : std::initializer_list<Shape>{{1, 1, 1},
                                                           {3, 4, 5},
                                                           {2, 1, 9},
                                                           {4, 8, 64},
                                                           {3, 70, 33},
                                                           {37, 40, 8},
                                                           {5, 2, 1500},
                                                           {130, 3, 260},
                                                           {0, 3, 4}})
      expect_bits_of_reference([&](Lab& lab) { return of_views(lab, shape, t); }, to_string(shape));
}

// Sides below, at and above those of blocks in registers and of tiles.
TEST(Strided, TransposedCopiesMoveBits) {
  for (const DType t : {DType::f32, DType::bf16})
    for (const auto& [rows, cols] : std::initializer_list<std::pair<int64_t, int64_t>>{
             {1, 9}, {7, 3}, {8, 8}, {64, 64}, {65, 130}, {131, 67}, {512, 1024}, {3, 5000}, {5000, 3}}) {
      Lab lab;
      const auto bytes = static_cast<size_t>(rows * cols * size_of(t));
      std::vector<uint8_t> from(bytes), to(bytes);
      std::mt19937 random(7);
      for (uint8_t& b : from) b = random() & 0xbf;  // finite
      const Tensor x = lab.empty({rows, cols}, t), y = lab.empty({cols, rows}, t);
      ops::copy_from_host(lab.s, x, from.data(), x.nbytes());
      ops::map(lab.s, MapFunction::copy, ops::dense(y), {ops::permuted(ops::dense(x), {1, 0})});
      ops::copy_to_host(lab.s, to.data(), y);
      const auto size = static_cast<size_t>(size_of(t));
      int64_t wrong = 0;
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c)
          wrong += std::memcmp(&from[static_cast<size_t>(r * cols + c) * size],
                               &to[static_cast<size_t>(c * rows + r) * size], size) != 0;
      EXPECT_EQ(wrong, 0) << rows << " x " << cols << " " << name_of(t);
    }
}

TEST(Strided, UnalignedOperandsHaveTheSameBits) {
  for (const DType t : {DType::f32, DType::bf16}) {
    Lab lab;
    const Tensor x = lab.random({6, 64}, 1, t), y = lab.random({64}, 2, t);
    const auto sum = [&](const Tensor& a, const Tensor& b) {
      return mapped(lab, MapFunction::divide, {6, 64}, {a, ops::broadcast(ops::dense(b), {6, 64})}, t);
    };
    EXPECT_EQ(bits(sum(x, y)), bits(sum(lab.shifted(x), lab.shifted(y))));
  }
}

TEST(Strided, OutputMayBeAnInput) {
  for (const char* kernels : {kFast, "reference"})
    for (const DType t : {DType::f32, DType::bf16}) {
      Lab lab(kernels);
      const Tensor x = lab.random({50, 41}, 1, t), y = lab.random({50, 41}, 2, t);
      const Floats want = mapped(lab, MapFunction::subtract, {50, 41}, {x, y}, t);
      ops::map(lab.s, MapFunction::subtract, ops::dense(y), {x, y});
      EXPECT_EQ(lab.floats(y), want);
    }
}

TEST(Strided, RefusesViewsThatDoNotFit) {
  Lab lab;
  const Tensor x = lab.full({2, 3}, 1), y = lab.full({3, 2}, 1);
  const auto refused = [&](const ops::StridedView& out, const std::vector<ops::MapInput>& in) {
    return message_of<ShapeMismatch>([&] { ops::map(lab.s, MapFunction::add, out, in); });
  };
  EXPECT_THAT(refused(ops::dense(x), {x, y}), HasSubstr("b is [3, 2], must be [2, 3]"));
  EXPECT_THAT(refused(ops::dense(x), {x}), HasSubstr("add has 2 operands, 1 are given"));
  EXPECT_THAT(refused(ops::dense(x), {x, lab.full({2, 3}, 1, DType::bf16)}), HasSubstr("b is bf16"));
  EXPECT_THAT(refused({x, 1, {2, 3}, {3, 1}}, {x, x}), HasSubstr("leaves its tensor [2, 3]"));
  EXPECT_THAT(message_of<ShapeMismatch>([&] {
                ops::broadcast(ops::dense(x), {3, 3});
              }),
              HasSubstr("[2, 3] does not broadcast to [3, 3]"));
  EXPECT_THAT(message_of<ShapeMismatch>([&] {
                ops::broadcast_shape({2, 3}, {2});
              }),
              HasSubstr("the shapes [2, 3] and [2] do not broadcast"));
  EXPECT_EQ(ops::broadcast_shape({4, 1, 3}, {2, 1}), (Shape{4, 2, 3}));
}

}  // namespace
}  // namespace sherd::test
