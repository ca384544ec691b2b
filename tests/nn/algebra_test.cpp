// Values in expressions: what is recorded, saved and refused. Figures: golden_functions_test.cpp.

#include <cmath>

#include <sherd/kernels/copy/copy.h>

#include "differences.h"
#include "loose_parameters.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using nn::Tape;
using nn::Var;

Var of_shape(Device& device, Shape shape, DType dtype = DType::f32) {
  return Var(Tensor::empty(device, std::move(shape), dtype, "test"));
}

TEST(Algebra, ParametersAndConstantsAreValues) {
  auto device = make_cpu_device();
  Stream& s = device->compute();
  LooseParameters loose;
  const Parameter w = loose.add(nn::constants(*device, {3}, {1, 2, 4}).value());
  Tape tape;
  loose.record_on(&tape);
  const Var x = tape.input(nn::constants(*device, {2, 3}, {1, 1, 1, 2, 2, 2}).value());
  tape.backward(nn::sum(x * w * w + w));
  EXPECT_THAT(ops::to_floats(s, loose.grad(0)),
              testing::ElementsAre(8, 14, 26));  // sum of 2 x w + 1 over rows
  // A second backward of the same step adds.
  tape.backward(nn::sum(3 * nn::value(w)));
  EXPECT_THAT(ops::to_floats(s, loose.grad(0)), testing::ElementsAre(11, 17, 29));
  loose.record_on(nullptr);
  EXPECT_FALSE((Var(x.value()) * w).requires_grad());
  EXPECT_EQ(nn::constants(*device, {2}, {1, 1.00390625f}, DType::bf16).dtype(), DType::bf16);
}

TEST(Algebra, ComparisonsAndConditionsHaveNoGradient) {
  auto device = make_cpu_device();
  Tape tape;
  const Var x = tape.leaf(random(*device, {4}, 1)), y = tape.leaf(random(*device, {4}, 2));
  EXPECT_FALSE(nn::less(x, y).requires_grad());
  EXPECT_FALSE(nn::less_equal(x, 0.0).requires_grad());
  EXPECT_FALSE(nn::equal(x, y).requires_grad());
  tape.backward(nn::sum(nn::where(x, 2.0 * y, y)));
  EXPECT_FALSE(tape.gradient(x).defined());
  EXPECT_THAT(ops::to_floats(device->compute(), tape.gradient(y)), testing::ElementsAre(2, 2, 2, 2));
}

// An expression keeps what its derivative reads: of x + 1 nothing, of exp(x) the result.
TEST(Algebra, SavesWhatTheDerivativeNeeds) {
  auto device = make_cpu_device();
  constexpr int64_t kBytes = int64_t{1} << 20;
  const auto kept = [&](const std::function<Var(const Var&)>& f) {
    Tape tape;
    const Var x = tape.leaf(random(*device, {kBytes / 4}, 1));
    device->compute().synchronize();
    const int64_t before = device->allocator().live_bytes();
    const Var objective = nn::sum(f(x));
    return (device->allocator().live_bytes() - before) / kBytes;
  };
  EXPECT_EQ(kept([](const Var& x) { return x + 1.0; }), 0);
  EXPECT_EQ(kept([](const Var& x) { return 3.0 * x - 2.0; }), 0);
  EXPECT_EQ(kept([](const Var& x) { return nn::exp(x); }), 1);
  EXPECT_EQ(kept([](const Var& x) { return x * x; }), 0);  // x itself, which is there
  EXPECT_EQ(kept([](const Var& x) { return nn::sigmoid(x) + x; }), 1);
}

TEST(Algebra, AttentionWithACausalMaskIsCausalAttention) {
  auto device = make_cpu_device();
  Stream& s = device->compute();
  const int64_t batch = 2, heads = 3, seq = 5, dim = 4;
  const auto run = [&](bool own) {
    Tape tape;
    const Var qkv = tape.leaf(random(*device, {batch * seq, 3 * heads * dim}, 1));
    Var y;
    if (own) {
      y = nn::causal_attention(qkv, batch, heads);
    } else {
      std::vector<float> hidden(seq * seq, 0);
      for (int64_t i = 0; i < seq; ++i)
        for (int64_t j = i + 1; j < seq; ++j) hidden[static_cast<size_t>(i * seq + j)] = -INFINITY;
      const std::vector<Var> parts = nn::split_columns(qkv, {heads * dim, heads * dim, heads * dim});
      y = nn::dot_product_attention(
          parts[0], parts[1], parts[2],
          {.batch = batch, .heads = heads, .mask = nn::constants(*device, {seq, seq}, hidden)});
    }
    tape.backward(weighted(y));
    std::vector<float> both = ops::to_floats(s, y.value());
    for (const float g : ops::to_floats(s, tape.gradient(qkv))) both.push_back(g);
    return both;
  };
  const std::vector<float> want = run(true), got = run(false);
  ASSERT_EQ(got.size(), want.size());
  // Values near 1 of sums of 5 products of exponentials that err by 3e-7.
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 5e-6) << i;
}

TEST(Algebra, BatchNormFollowsTheStatistics) {
  auto device = make_cpu_device();
  Stream& s = device->compute();
  const auto filled = [&](float v) { return nn::constants(*device, {1}, {v}).value(); };
  nn::BatchNormOptions options{
      .eps = 0, .momentum = 0.5, .running_mean = filled(0), .running_variance = filled(1)};
  const Var w(filled(1)), bias(filled(0));
  const Tensor x = nn::constants(*device, {4, 1}, {1, 3, 5, 7}).value();
  Tape tape;
  nn::batch_norm(tape.input(x), w, bias, options);
  EXPECT_EQ(ops::to_floats(s, options.running_mean)[0], 2);  // half of 4
  EXPECT_FLOAT_EQ(ops::to_floats(s, options.running_variance)[0], 0.5f + 0.5f * 20 / 3);
  options.training = false;
  const float root = std::sqrt(0.5f + 0.5f * 20 / 3);
  EXPECT_FLOAT_EQ(ops::to_floats(s, nn::batch_norm(Var(x), w, bias, options).value())[3], 5 / root);
  {
    nn::NoGrad evaluation(tape);
    options.training = true;
    nn::batch_norm(tape.input(x), w, bias, options);
  }
  EXPECT_EQ(ops::to_floats(s, options.running_mean)[0], 2);  // unchanged
  options.running_variance = {};
  EXPECT_THAT(message_of<InvalidArgument>([&] { nn::batch_norm(Var(x), w, bias, options); }),
              HasSubstr("running statistics are missing"));
}

TEST(Algebra, RefusesWhatDoesNotFit) {
  auto device = make_cpu_device();
  const auto t = [&](Shape shape, DType dtype = DType::f32) {
    return of_shape(*device, std::move(shape), dtype);
  };
  const auto mismatch = [](const std::function<void()>& f) { return message_of<ShapeMismatch>(f); };
  const auto invalid = [](const std::function<void()>& f) { return message_of<InvalidArgument>(f); };
  EXPECT_THAT(mismatch([&] {
                t({2, 3}) + t({2});
              }),
              HasSubstr("add of f32 [2, 3], f32 [2]: the shapes [2, 3] and [2] do not broadcast"));
  EXPECT_THAT(mismatch([&] { t({2}) / t({2}, DType::bf16); }), HasSubstr("b is bf16, must be f32"));
  EXPECT_THAT(invalid([&] { nn::add(1.0, 2.0); }), HasSubstr("add: all operands are numbers"));
  EXPECT_THAT(invalid([&] { nn::maximum(Var(), 2.0); }), HasSubstr("maximum: operand 0 is undefined"));
  EXPECT_THAT(invalid([&] { nn::sum(t({2, 3}), {2}); }), HasSubstr("sum: dimensions [2] of a value [2, 3]"));
  EXPECT_THAT(invalid([&] { nn::mean(t({2, 3}), {0, -2}); }), HasSubstr("each once"));
  EXPECT_THAT(invalid([&] { nn::slice(t({4}), 0, 2, 5); }), HasSubstr("[2, 5) by 1 lies outside"));
  EXPECT_THAT(invalid([&] { nn::permute(t({4, 2}), {1}); }), HasSubstr("leaves out a dimension"));
  EXPECT_THAT(mismatch([&] { nn::concat({t({2, 3}), t({3, 2})}, 0); }), HasSubstr("part 1 is f32 [3, 2]"));
  EXPECT_THAT(mismatch([&] { nn::matmul(t({3}), t({3, 2})); }), HasSubstr("both need two dimensions"));
  EXPECT_THAT(mismatch([&] { nn::matmul(t({4, 3}), t({4, 2})); }), HasSubstr("do not fit"));
  EXPECT_THAT(mismatch([&] { nn::windows(t({1, 1, 2, 2}), {3, 1}); }), HasSubstr("larger than x"));
  EXPECT_THAT(invalid([&] {
                nn::group_norm(t({2, 5}), 2, t({5}), t({5}));
              }),
              HasSubstr("2 groups of x [2, 5]"));
  EXPECT_THAT(mismatch([&] {
                nn::constants(*device, {3}, {1, 2});
              }),
              HasSubstr("2 values for the shape [3]"));
  EXPECT_THAT(mismatch([&] {
                nn::dot_product_attention(t({4, 6}), t({5, 6}), t({5, 6}), {.batch = 2});
              }),
              HasSubstr("rows must be whole sequences"));
}

TEST(Algebra, SecondDerivativesAreRefused) {
  auto device = make_cpu_device();
  Tape tape;
  const Var x = tape.leaf(random(*device, {4}, 1));
  tape.backward(nn::sum(x * x * x));
  const Tensor gradient = tape.gradient(x);
  EXPECT_THAT(message_of<InvalidArgument>([&] { tape.backward(nn::sum(tape.input(gradient) * 2.0)); }),
              HasSubstr("the tape has no second derivatives"));
}

}  // namespace
}  // namespace sherd::test
