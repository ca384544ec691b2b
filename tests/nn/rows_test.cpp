// Parts of values: empty ones, unused ones, and what does not fit.
#include <gtest/gtest.h>

#include <numeric>

#include <sherd/kernels/copy/copy.h>
#include <sherd/nn/nn.h>

namespace sherd::test {
namespace {

using nn::Tape;
using nn::Var;
using Floats = std::vector<float>;

struct Rows : ::testing::Test {
  std::shared_ptr<Device> device = make_cpu_device();
  Tape tape;

  Tensor counted(Shape shape) {
    Tensor t = Tensor::empty(*device, std::move(shape), DType::f32, "test");
    Floats values(static_cast<size_t>(t.numel()));
    std::iota(values.begin(), values.end(), 1.0f);
    ops::copy_from_host(device->compute(), t, values.data(), t.nbytes());
    return t;
  }
  Floats floats(const Tensor& t) { return ops::to_floats(device->compute(), t); }
  ~Rows() override { tape.clear(); }
};

TEST_F(Rows, EmptyPartsAreParts) {
  const Var a = tape.leaf(counted({0, 2})), b = tape.leaf(counted({2, 2}));
  const Var y = nn::concat_rows({a, b, a});
  EXPECT_EQ(y.shape(), (Shape{2, 2}));
  EXPECT_EQ(floats(y.value()), (Floats{1, 2, 3, 4}));
  const Var none = nn::rows(y, 1, 1);
  EXPECT_EQ(none.shape(), (Shape{0, 2}));
  tape.backward(nn::sum(y) + nn::sum(none));
  EXPECT_EQ(floats(tape.gradient(b)), Floats(4, 1.0f));
  EXPECT_EQ(tape.gradient(a).shape(), (Shape{0, 2}));
}

TEST_F(Rows, OneValueSeveralTimesGetsAllItsGradients) {
  const Var x = tape.leaf(counted({2, 2}));
  const Var y = nn::concat_rows({x, nn::rows(x, 1, 2), x});
  tape.backward(y, counted({5, 2}));
  EXPECT_EQ(floats(tape.gradient(x)), (Floats{1 + 7, 2 + 8, 3 + 5 + 9, 4 + 6 + 10}));
}

TEST_F(Rows, OfTensorsOfManyDimensions) {
  const Var x = tape.leaf(counted({3, 2, 2}));
  const Var y = nn::rows(x, 1, 3);
  EXPECT_EQ(y.value().raw(), x.value().rows(1, 3).raw());  // no copy
  EXPECT_EQ(nn::concat_rows({y, nn::rows(x, 0, 1)}).shape(), (Shape{3, 2, 2}));
  tape.backward(nn::sum(y));
  EXPECT_EQ(floats(tape.gradient(x)), (Floats{0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}));
}

TEST_F(Rows, UnusedColumnsHaveNoGradient) {
  const Var x = tape.leaf(counted({2, 4}));
  const std::vector<Var> parts = nn::split_columns(x, {1, 0, 2, 1});
  EXPECT_EQ(floats(parts[2].value()), (Floats{2, 3, 6, 7}));
  EXPECT_EQ(parts[1].shape(), (Shape{2, 0}));
  tape.backward(parts[2], counted({2, 2}));
  EXPECT_EQ(floats(tape.gradient(x)), (Floats{0, 1, 2, 0, 0, 3, 4, 0}));
}

TEST_F(Rows, WithoutRowsNothingIsSplit) {
  const Var x = tape.leaf(counted({0, 3}));
  const std::vector<Var> parts = nn::split_columns(x, {2, 1});
  EXPECT_EQ(parts[0].shape(), (Shape{0, 2}));
  tape.backward(nn::sum(parts[0]) + nn::sum(parts[1]));
  EXPECT_EQ(tape.gradient(x).shape(), (Shape{0, 3}));
}

TEST_F(Rows, RefuseWhatDoesNotFit) {
  const Var x = tape.input(counted({2, 3}));
  EXPECT_THROW(nn::concat_rows({}), InvalidArgument);
  EXPECT_THROW(nn::concat_rows({x, tape.input(counted({2, 2}))}), ShapeMismatch);
  EXPECT_THROW(nn::concat_rows({x, tape.input(Tensor::empty(*device, {2, 3}, DType::bf16, "test"))}),
               ShapeMismatch);
  EXPECT_THROW(nn::concat_rows({tape.input(counted({}))}), ShapeMismatch);
  EXPECT_THROW(nn::rows(x, -1, 1), InvalidArgument);
  EXPECT_THROW(nn::rows(x, 2, 1), InvalidArgument);
  EXPECT_THROW(nn::rows(x, 0, 3), InvalidArgument);
  EXPECT_THROW(nn::split_columns(x, {1, 1}), ShapeMismatch);
  EXPECT_THROW(nn::split_columns(x, {4, -1}), ShapeMismatch);
  EXPECT_THROW(nn::split_columns(tape.input(counted({3})), {3}), ShapeMismatch);
}

}  // namespace
}  // namespace sherd::test
