#include "nets.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using nn::Tape;
using nn::Var;

struct TapeTest : testing::Test {
  std::shared_ptr<Device> device = make_cpu_device();
  Tensor tensor(std::vector<float> values) {
    Tensor t = Tensor::empty(*device, {static_cast<int64_t>(values.size())}, DType::f32, "test");
    ops::copy_from_host(device->compute(), t, values.data(), t.nbytes());
    return t;
  }
  std::vector<float> read(const Tensor& t) { return ops::to_floats(device->compute(), t); }
  Tape tape;
};

TEST_F(TapeTest, GradientsOfAValueThatIsUsedTwiceAddUp) {
  const Var x = tape.leaf(tensor({1, 2, 3}));
  tape.backward(nn::sum(3 * x + x));
  EXPECT_THAT(read(tape.gradient(x)), ElementsAre(4, 4, 4));
  EXPECT_EQ(tape.size(), 0);
}

TEST_F(TapeTest, AValueAddedToItselfAndToOthersKeepsEverybodysGradient) {
  const Var x = tape.leaf(tensor({1, 2})), y = tape.leaf(tensor({5, 6}));
  const Var z = (x + x) + y;
  tape.backward(nn::mean_squared_error(z, tensor({0, 0})));
  EXPECT_THAT(read(tape.gradient(x)), ElementsAre(14, 20));  // d mean(z^2) = z, twice
  EXPECT_THAT(read(tape.gradient(y)), ElementsAre(7, 10));
}

TEST_F(TapeTest, ConstantsGetNoGradientAndWhatDependsOnThemAloneIsNotRecorded) {
  const Var x = tape.input(tensor({1, 2}));
  const Var y = 2 * x;
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(y.tape(), &tape);
  EXPECT_EQ(tape.size(), 0);
  EXPECT_THAT(message_of<InvalidArgument>([&] { tape.backward(nn::sum(y)); }),
              HasSubstr("depends on no parameter and no leaf"));
}

TEST_F(TapeTest, DetachStopsTheGradient) {
  const Var x = tape.leaf(tensor({1, 2}));
  tape.backward(nn::sum(x + (5 * x).detach()));
  EXPECT_THAT(read(tape.gradient(x)), ElementsAre(1, 1));
}

TEST_F(TapeTest, InsideNoGradNothingIsKept) {
  const Var x = tape.leaf(tensor({1, 2}));
  {
    nn::NoGrad scope(tape);
    EXPECT_FALSE((2 * x).requires_grad());
  }
  EXPECT_EQ(tape.size(), 0);
  EXPECT_TRUE((2 * x).requires_grad());
}

TEST_F(TapeTest, ASecondBackwardOverFreedOperationsIsRefused) {
  const Var x = tape.leaf(tensor({1, 2}));
  const Var y = 2 * x, loss = nn::sum(y);
  tape.backward(loss);
  EXPECT_THAT(message_of<InvalidArgument>([&] { tape.backward(loss); }), HasSubstr("a second backward()"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { nn::sum(y); }),
              HasSubstr("the operations behind it are released"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { nn::backward(Var(tensor({1}))); }), HasSubstr("on no tape"));
  Tape other;
  EXPECT_THAT(message_of<InvalidArgument>([&] { other.backward(tape.leaf(tensor({1}))); }),
              HasSubstr("on another tape"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { nn::add(tape.leaf(tensor({1})), other.leaf(tensor({1}))); }),
              HasSubstr("two tapes"));
}

TEST_F(TapeTest, UnusedOutputsHaveNoGradient) {
  const Var x = tape.leaf(tensor({1, 2}));
  std::vector<bool> defined;
  const std::vector<Var> y = nn::functions(
      {x},
      [&](Stream&) {
        return std::vector<Tensor>{tensor({1}), tensor({2}), tensor({3})};
      },
      [&](Stream&, const nn::BackwardCall& call) -> std::vector<nn::Gradient> {
        for (size_t i = 0; i < 3; ++i) defined.push_back(call.output(i).defined());
        return {nn::Gradient::constant(1)};
      });
  tape.backward(nn::sum(y[1]));
  EXPECT_THAT(defined, ElementsAre(false, true, false));
  EXPECT_THAT(read(tape.gradient(x)), ElementsAre(1, 1));
}

TEST_F(TapeTest, AFunctionThatReturnsTheWrongNumberOfGradientsIsNamed) {
  const Var x = tape.leaf(tensor({1, 2}));
  const Var y = nn::function(
      {x}, [&](Stream&) { return tensor({1}); },
      [](Stream&, const nn::BackwardCall&) -> std::vector<nn::Gradient> { return {}; });
  EXPECT_THAT(message_of<InvalidArgument>([&] { tape.backward(y); }),
              HasSubstr("0 gradients for its 1 inputs"));
  EXPECT_EQ(tape.size(), 0);
}

TEST_F(TapeTest, GradientsOfAnotherShapeAreRefused) {
  const Var x = tape.leaf(tensor({1, 2}));
  const Var y = nn::function(
      {x}, [&](Stream&) { return tensor({1}); },
      [&](Stream&, const nn::BackwardCall&) -> std::vector<nn::Gradient> {
        return {tensor({1, 2, 3})};
      });
  EXPECT_THROW(tape.backward(y), ShapeMismatch);
  EXPECT_THROW(tape.backward(nn::sum(tape.leaf(tensor({1}))), tensor({1, 2})), ShapeMismatch);
}

TEST_F(TapeTest, AValueOfOtherThanOneElementNeedsItsGradient) {
  const Var x = tape.leaf(tensor({1, 2}));
  const Var y = x * x, none = tape.leaf(tensor({}));
  for (const Var& value : {y, none}) {
    const auto names_it = AllOf(HasSubstr("value " + to_string(value.value().shape()) + " without"),
                                HasSubstr("nn::sum()"), HasSubstr("backward(value, gradient)"));
    EXPECT_THAT(message_of<InvalidArgument>([&] { tape.backward(value); }), names_it);
    EXPECT_THAT(message_of<InvalidArgument>([&] { nn::backward(value); }), names_it);
  }
  tape.backward(y, tensor({10, 100}));
  EXPECT_THAT(read(tape.gradient(x)), ElementsAre(20, 400));
  const Var again = tape.leaf(tensor({3, 4}));
  tape.backward(again * again, nn::Gradient::constant(1));
  EXPECT_THAT(read(tape.gradient(again)), ElementsAre(6, 8));
  const Var one = tape.leaf(tensor({5}));
  tape.backward(nn::view(one * one, {1, 1}));
  EXPECT_THAT(read(tape.gradient(one)), ElementsAre(10));
}

TEST_F(TapeTest, WhatAFunctionsBackwardComputesIsNotRecordedAndMayNotGoBackwardItself) {
  const Var x = tape.leaf(tensor({1, 2}));
  const Var y = nn::function(
      {x},
      [&](Stream&) {
        return tensor({3, 4});
      },
      [&, x](Stream&, const nn::BackwardCall&) -> std::vector<nn::Gradient> {
        const Var again = nn::gelu(x) + x;
        EXPECT_FALSE(again.requires_grad());
        tape.clear();  // without effect
        EXPECT_THAT(message_of<InvalidArgument>([&] { tape.backward(x); }), HasSubstr("inside"));
        return {nn::Gradient::constant(2)};
      });
  tape.backward(nn::sum(y));
  EXPECT_THAT(read(tape.gradient(x)), ElementsAre(2, 2));
}

TEST_F(TapeTest, MemoryThatAFunctionDoesNotOwnIsNotWritten) {
  const Tensor mine = tensor({7, 7});
  const Var x = tape.leaf(tensor({1, 2}));
  const Var y = nn::function(
      {x},
      [&](Stream&) {
        return tensor({1, 1});
      },
      [&](Stream&, const nn::BackwardCall&) -> std::vector<nn::Gradient> { return {mine.unowned_view()}; });
  tape.backward(nn::sum(y + 2 * x));
  EXPECT_THAT(read(tape.gradient(x)), ElementsAre(9, 9));
  EXPECT_THAT(read(mine), ElementsAre(7, 7));
}

TEST_F(TapeTest, MemoryGoesAsBackwardPasses) {
  const Var x = tape.leaf(Tensor::empty(*device, {1 << 18}, DType::f32, "test"));
  ops::fill(device->compute(), x.value(), 1);
  Allocator& allocator = device->allocator();
  Var loss;
  {
    Var y = x;
    for (int i = 0; i < 8; ++i) y = nn::gelu(y);
    loss = nn::sum(y);
  }
  device->compute().synchronize();
  const int64_t kept = allocator.live_bytes("activations");
  EXPECT_GE(kept, 7 << 20);
  tape.backward(loss);
  device->compute().synchronize();
  loss = {};
  EXPECT_LE(allocator.live_bytes("activations"), (1 << 20) + 64);  // the leaf's gradient
  EXPECT_LE(allocator.peak_bytes(), kept + (4 << 20));
}

}  // namespace
}  // namespace sherd::test
