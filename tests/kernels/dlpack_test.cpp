// Tensors lent to and borrowed from other libraries.

#include <sherd/kernels/device/detail/dlpack_abi.h>
#include <sherd/kernels/device/dlpack.h>
#include <sherd/kernels/ops.h>

#include "support/message_of.h"

namespace sherd::test {
namespace {

// A producer that is not sherd: two rows of three floats, told when they are let go.
struct Foreign {
  std::vector<float> values = {0, 1, 2, 3, 4, 5};
  std::vector<int64_t> shape = {2, 3}, strides = {3, 1};
  int deleted = 0;
  DLManagedTensorVersioned managed{
      .version = {1, 1},
      .manager_ctx = this,
      .deleter = [](DLManagedTensorVersioned* m) { ++static_cast<Foreign*>(m->manager_ctx)->deleted; },
      .flags = 0,
      .dl_tensor = {.data = values.data(),
                    .device = {kDLCPU, 0},
                    .ndim = 2,
                    .dtype = {kDLFloat, 32, 1},
                    .shape = shape.data(),
                    .strides = strides.data(),
                    .byte_offset = 0}};
};

std::string refusal(Foreign& foreign) {
  const auto device = make_cpu_device();
  try {
    (void)from_dlpack(&foreign.managed, *device);
  } catch (const Error& e) {
    EXPECT_EQ(foreign.deleted, 0) << "still the caller's";
    return e.what();
  }
  return "accepted";
}

TEST(Dlpack, ALentTensorIsDescribedAndKeepsItsMemory) {
  const auto device = make_cpu_device();
  Allocator& allocator = device->allocator();
  Tensor t = Tensor::empty(*device, {2, 3}, DType::bf16, "lent");
  ops::fill(device->compute(), t, 1.5);
  DLManagedTensorVersioned* lent = to_dlpack(device->compute(), t);
  const DLTensor& d = lent->dl_tensor;
  EXPECT_EQ(lent->version.major, 1u);
  EXPECT_EQ(lent->flags, 0u);
  EXPECT_EQ(d.data, t.raw());
  EXPECT_EQ(d.device.device_type, kDLCPU);
  EXPECT_EQ(d.dtype.code, kDLBfloat);
  EXPECT_EQ(d.dtype.bits, 16);
  EXPECT_EQ(d.dtype.lanes, 1);
  EXPECT_THAT(std::vector<int64_t>(d.shape, d.shape + d.ndim), ElementsAre(2, 3));
  EXPECT_THAT(std::vector<int64_t>(d.strides, d.strides + d.ndim), ElementsAre(3, 1));
  const int64_t live = allocator.live_bytes(MemoryClass::activation);
  t = Tensor();
  EXPECT_EQ(allocator.live_bytes(MemoryClass::activation), live);
  EXPECT_EQ(static_cast<float>(static_cast<bf16*>(d.data)[5]), 1.5f) << "written before it was lent";
  lent->deleter(lent);
  EXPECT_EQ(allocator.live_bytes(MemoryClass::activation), 0);
}

TEST(Dlpack, EveryDtypeAndShapeComesBackAsItWent) {
  const auto device = make_cpu_device();
  for (const DType dtype :
       {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64, DType::u8})
    for (const Shape& shape : {Shape{}, Shape{4}, Shape{0, 3}, Shape{1, 2, 1, 3}}) {
      const Tensor t = Tensor::empty(*device, shape, dtype, "lent");
      const Tensor back = from_dlpack(to_dlpack(device->compute(), t, true), *device, true);
      EXPECT_EQ(back.shape(), shape);
      EXPECT_EQ(back.dtype(), dtype);
      EXPECT_EQ(back.raw(), t.raw());
      EXPECT_FALSE(back.sole_owner());
    }
}

TEST(Dlpack, BorrowedMemoryIsUsedInPlaceUncountedAndLetGoOnce) {
  const auto device = make_cpu_device();
  Foreign foreign;
  {
    Tensor view;
    {
      const Tensor t = from_dlpack(&foreign.managed, *device);
      EXPECT_EQ(t.raw(), foreign.values.data());
      EXPECT_EQ(device->allocator().live_bytes(MemoryClass::activation), 0);
      EXPECT_THAT(ops::to_floats(device->compute(), t.rows(1, 2)), ElementsAre(3, 4, 5));
      ops::fill(device->compute(), t.rows(0, 1), 7);
      device->compute().synchronize();
      view = t.flat(2, 4);
    }
    EXPECT_EQ(foreign.deleted, 0) << "a view shares it";
  }
  EXPECT_EQ(foreign.deleted, 1);
  EXPECT_THAT(foreign.values, ElementsAre(7, 7, 7, 3, 4, 5));
}

TEST(Dlpack, OffsetsMissingStridesAndDimensionsOfOneAreTaken) {
  const auto device = make_cpu_device();
  Foreign offset;
  offset.shape = {1, 4};
  offset.strides = {99, 1};
  offset.managed.dl_tensor.byte_offset = 8;
  EXPECT_THAT(ops::to_floats(device->compute(), from_dlpack(&offset.managed, *device)),
              ElementsAre(2, 3, 4, 5));
  Foreign compact;
  compact.managed.dl_tensor.strides = nullptr;
  EXPECT_EQ(from_dlpack(&compact.managed, *device).shape(), (Shape{2, 3}));
  Foreign unowned;
  unowned.managed.deleter = nullptr;
  EXPECT_EQ(from_dlpack(&unowned.managed, *device).numel(), 6);
}

TEST(Dlpack, WhatDoesNotFitIsRefusedAndStaysTheCallers) {
  const auto changed = [](const std::function<void(Foreign&)>& change) {
    Foreign foreign;
    change(foreign);
    return refusal(foreign);
  };
  EXPECT_THAT(changed([](Foreign& f) {
                f.strides = {1, 2};
              }),
              AllOf(HasSubstr("[2, 3]"), HasSubstr("[1, 2]"), HasSubstr("contiguous")));
  EXPECT_THAT(changed([](Foreign& f) { f.managed.version.major = 2; }), HasSubstr("DLPack 2.1"));
  EXPECT_THAT(changed([](Foreign& f) {
                f.managed.dl_tensor.device = {kDLCUDA, 1};
              }),
              HasSubstr("(type 2, number 1)"));
  EXPECT_THAT(changed([](Foreign& f) { f.managed.dl_tensor.dtype = {kDLBool, 8, 1}; }), HasSubstr("uint8"));
  EXPECT_THAT(changed([](Foreign& f) {
                f.managed.dl_tensor.dtype = {kDLFloat, 32, 4};
              }),
              HasSubstr("4 lanes"));
  EXPECT_THAT(changed([](Foreign& f) { f.managed.flags = kDLPackReadOnly; }), HasSubstr("read-only"));
  EXPECT_THAT(changed([](Foreign& f) { f.managed.dl_tensor.byte_offset = 2; }),
              HasSubstr("not aligned for elements"));
  EXPECT_THAT(changed([](Foreign& f) { f.managed.dl_tensor.data = nullptr; }),
              HasSubstr("not aligned for elements"));
  EXPECT_THAT(changed([](Foreign& f) { f.shape = {-2, 3}; }), HasSubstr("[-2, 3]"));
  EXPECT_THAT(changed([](Foreign& f) { f.shape = {int64_t{1} << 60, 64}; }), HasSubstr("cannot be"));
  EXPECT_THROW((void)from_dlpack(nullptr, *make_cpu_device()), InvalidArgument);
  EXPECT_THROW((void)to_dlpack(make_cpu_device()->compute(), Tensor()), InvalidArgument);
}

}  // namespace
}  // namespace sherd::test
