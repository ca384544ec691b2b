#include <gtest/gtest.h>
#include <sherd/kernels/device/tensor.h>
#include <sherd/kernels/ops.h>

#include <future>

namespace sherd {
namespace {

struct TensorTest : testing::Test {
  std::shared_ptr<Device> device = make_cpu_device();
  Tensor t = Tensor::empty(*device, {4, 3}, DType::f32, "t");
};

TEST_F(TensorTest, DescribesItself) {
  EXPECT_TRUE(t.defined());
  EXPECT_EQ(t.numel(), 12);
  EXPECT_EQ(t.nbytes(), 48);
  EXPECT_EQ(t.dim(), 2);
  EXPECT_EQ(t.size(1), 3);
  EXPECT_EQ(&t.device(), device.get());
  EXPECT_FALSE(Tensor().defined());
  EXPECT_EQ(Tensor().raw(), nullptr);
}

TEST_F(TensorTest, ViewsShareMemory) {
  EXPECT_EQ(t.view({2, 6}).raw(), t.raw());
  EXPECT_EQ(t.flat(5, 7).data<float>(), t.data<float>() + 5);
  EXPECT_EQ(t.flat(5, 7).shape(), (Shape{2}));
  EXPECT_EQ(t.rows(1, 3).data<float>(), t.data<float>() + 3);
  EXPECT_EQ(t.rows(1, 3).shape(), (Shape{2, 3}));
  EXPECT_EQ(t.rows(4, 4).shape(), (Shape{0, 3}));
  EXPECT_EQ(t.flat().numel(), 12);
}

TEST_F(TensorTest, RejectsWhatDoesNotFit) {
  EXPECT_THROW((void)t.view({5}), ShapeMismatch);
  EXPECT_THROW((void)t.flat(-1, 2), InvalidArgument);
  EXPECT_THROW((void)t.flat(3, 2), InvalidArgument);
  EXPECT_THROW((void)t.flat(0, 13), InvalidArgument);
  EXPECT_THROW((void)t.rows(3, 5), InvalidArgument);
  EXPECT_THROW(t.data<int32_t>(), ShapeMismatch);
  EXPECT_THROW((void)Tensor::empty(*device, {2, -1}, DType::f32, "bad"), InvalidArgument);
  EXPECT_THROW(Tensor().view({0}), InvalidArgument);
  EXPECT_THROW(Tensor().device(), InvalidArgument);
}

TEST_F(TensorTest, MemoryLastsAsLongAsAnyView) {
  EXPECT_EQ(device->allocator().live_bytes("t"), 128);
  Tensor part = t.rows(1, 2);
  t = Tensor();
  EXPECT_EQ(device->allocator().live_bytes("t"), 128);
  part = Tensor();
  EXPECT_EQ(device->allocator().live_bytes("t"), 0);
}

TEST_F(TensorTest, BorrowedMemoryIsTheOwners) {
  Tensor view = t.rows(1, 2).unowned_view();
  EXPECT_EQ(view.raw(), t.rows(1, 2).raw());
  EXPECT_EQ(view.shape(), t.rows(1, 2).shape());
  t = Tensor();
  EXPECT_EQ(device->allocator().live_bytes("t"), 0);
  EXPECT_EQ(&view.device(), device.get()) << "the handle itself stays valid";
  view = Tensor();
  EXPECT_EQ(device->allocator().live_bytes(), 0);
  EXPECT_THROW((void)Tensor().unowned_view(), InvalidArgument);
}

TEST_F(TensorTest, BytesAreTheSameMemory) {
  const Tensor part = t.rows(1, 2);
  const Tensor bytes = part.bytes();
  EXPECT_EQ(bytes.raw(), part.raw());
  EXPECT_EQ(bytes.dtype(), DType::u8);
  EXPECT_EQ(bytes.shape(), Shape{part.nbytes()});
  EXPECT_THROW(Tensor().bytes(), InvalidArgument);
}

TEST_F(TensorTest, EmptyTensorsAreDefined) {
  Tensor e = Tensor::empty(*device, {0, 7}, DType::bf16, "e");
  EXPECT_TRUE(e.defined());
  EXPECT_EQ(e.numel(), 0);
  EXPECT_EQ(e.nbytes(), 0);
  Tensor scalar = Tensor::empty(*device, {}, DType::f64, "s");
  EXPECT_EQ(scalar.numel(), 1);
  EXPECT_EQ(scalar.nbytes(), 8);
}

// The host writes to it at once, whatever is queued.
TEST(Tensor, HostMemoryIsNotReadByQueuedWork) {
  auto device = make_cpu_device();
  Stream& s = device->compute();
  std::promise<void> open;
  s.submit("gate", [&](ExecutionContext&) { open.get_future().wait(); });
  const Tensor result = Tensor::empty(*device, {1}, DType::f32, "t");
  {
    const Tensor one = Tensor::empty(*device, {1}, DType::f32, "t");
    ops::fill(s, one, 1);
    ops::add(s, result, one, one);
  }  // later work of the stream may have the memory
  const Tensor host = Tensor::host(*device, {1}, DType::f32, "t");
  *host.data<float>() = 42;
  open.set_value();
  EXPECT_EQ(ops::to_floats(s, result), std::vector<float>{2});
  EXPECT_EQ(*host.data<float>(), 42);
}

TEST(Tensor, HostMemoryIsReusedOnceTheStreamsHavePassed) {
  auto device = make_cpu_device();
  for (int step = 0; step < 100; ++step) {
    const Tensor host = Tensor::host(*device, {1000}, DType::f32, "t");
    ops::fill(device->compute(), host, 1);
    device->compute().synchronize();
  }
  EXPECT_LE(device->staging().held_bytes(), 2 * Allocator::rounded(4000));
}

}  // namespace
}  // namespace sherd
