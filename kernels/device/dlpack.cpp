#include <sherd/kernels/device/dlpack.h>

#include <fmt/format.h>

#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include <sherd/kernels/device/detail/dlpack_abi.h>

namespace sherd {
namespace {

constexpr uint32_t kMajor = 1, kMinor = 0;

DLDataType code_of(DType t) {
  const auto bits = static_cast<uint8_t>(8 * size_of(t));
  switch (t) {
    case DType::f32:
    case DType::f16:
    case DType::f64:
      return {kDLFloat, bits, 1};
    case DType::bf16:
      return {kDLBfloat, bits, 1};
    case DType::i32:
    case DType::i64:
      return {kDLInt, bits, 1};
    case DType::i8:
      return {kDLInt, bits, 1};
    case DType::u8:
      return {kDLUInt, bits, 1};
    case DType::f8_e4m3:  // since version 1.1
      break;
  }
  throw InvalidArgument("to_dlpack: a dtype that DLPack 1.0 does not have");
}

std::optional<DType> dtype_from(DLDataType given) {
  for (const DType t :
       {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64, DType::u8, DType::i8}) {
    const DLDataType code = code_of(t);
    if (code.code == given.code && code.bits == given.bits && code.lanes == given.lanes) return t;
  }
  return std::nullopt;
}

DLDevice place_of(const Device& device) {
  if (device.kind() == DeviceKind::cpu) return {kDLCPU, 0};
  return {kDLCUDA, device.ordinal()};
}

// Row-major strides in elements.
Shape strides_of(const Shape& shape) {
  Shape strides(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0; stride *= shape[d]) strides[d] = stride;
  return strides;
}

// References of a lent tensor.
struct Lent {
  Tensor tensor;
  Shape shape, strides;
  DLManagedTensorVersioned managed{};
};

bool row_major(const DLTensor& t, const Shape& shape) {
  if (t.strides == nullptr || numel_of(shape) == 0) return true;
  const Shape want = strides_of(shape);
  for (size_t d = 0; d < shape.size(); ++d)
    if (shape[d] != 1 && t.strides[d] != want[d]) return false;  // the stride of a dimension of one is unused
  return true;
}

// Sizes without overflow. @throws InvalidArgument otherwise
Shape shape_from(const DLTensor& t) {
  if (t.ndim < 0 || (t.ndim > 0 && t.shape == nullptr))
    throw InvalidArgument(fmt::format("from_dlpack: a tensor of {} dimensions without sizes", t.ndim));
  Shape shape(t.shape, t.shape + t.ndim);
  int64_t room = std::numeric_limits<int64_t>::max() / 8;
  for (const int64_t d : shape) {
    if (d < 0 || d > room)
      throw InvalidArgument(fmt::format("from_dlpack: sizes {} cannot be", to_string(shape)));
    if (d > 0) room /= d;
  }
  return shape;
}

}  // namespace

DLManagedTensorVersioned* to_dlpack(Stream& stream, const Tensor& t, bool read_only) {
  if (!t.defined()) throw InvalidArgument("to_dlpack of an undefined tensor");
  stream.synchronize();
  auto lent = std::make_unique<Lent>(Lent{t, t.shape(), strides_of(t.shape())});
  lent->managed = {.version = {kMajor, kMinor},
                   .manager_ctx = lent.get(),
                   .deleter = [](DLManagedTensorVersioned* m) { delete static_cast<Lent*>(m->manager_ctx); },
                   .flags = read_only ? kDLPackReadOnly : 0,
                   .dl_tensor = {.data = t.raw(),
                                 .device = place_of(t.device()),
                                 .ndim = static_cast<int32_t>(t.dim()),
                                 .dtype = code_of(t.dtype()),
                                 .shape = lent->shape.data(),
                                 .strides = lent->strides.data(),
                                 .byte_offset = 0}};
  return &lent.release()->managed;
}

Tensor from_dlpack(DLManagedTensorVersioned* given, Device& device, bool allow_read_only) {
  if (given == nullptr) throw InvalidArgument("from_dlpack of no tensor");
  if (given->version.major != kMajor)  // nothing behind the deleter can be relied on
    throw NotSupported(fmt::format("from_dlpack: a tensor of DLPack {}.{}; this is written for {}.x",
                                   given->version.major, given->version.minor, kMajor));
  const DLTensor& t = given->dl_tensor;
  const DLDevice here = place_of(device);
  if (t.device.device_type != here.device_type || t.device.device_id != here.device_id)
    throw InvalidArgument(fmt::format(
        "from_dlpack: the tensor is on device (type {}, number {}) where '{}' is (type {}, number {}); copy "
        "it there "
        "first (types: 1 CPU, 2 CUDA)",
        t.device.device_type, t.device.device_id, device.label(), here.device_type, here.device_id));
  const std::optional<DType> dtype = dtype_from(t.dtype);
  if (!dtype)
    throw InvalidArgument(
        fmt::format("from_dlpack: elements of type code {} with {} bits and {} lanes; f32, bf16, f16, f64, "
                    "i32, i64 and u8 are "
                    "taken (a tensor of bool: give it as uint8)",
                    t.dtype.code, t.dtype.bits, t.dtype.lanes));
  const Shape shape = shape_from(t);
  if (!row_major(t, shape))
    throw InvalidArgument(
        fmt::format("from_dlpack: a tensor of shape {} with strides {}; only row-major tensors without gaps "
                    "are taken: make it "
                    "contiguous first",
                    to_string(shape), to_string(Shape(t.strides, t.strides + t.ndim))));
  if ((given->flags & kDLPackReadOnly) != 0 && !allow_read_only)
    throw InvalidArgument(
        "from_dlpack: the memory is read-only, and nothing keeps a Tensor from being written; copy it, or "
        "pass "
        "allow_read_only and do not write");
  char* data = static_cast<char*>(t.data) + (t.data != nullptr ? t.byte_offset : 0);
  if (numel_of(shape) > 0 &&
      (data == nullptr || reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(size_of(*dtype)) != 0))
    throw InvalidArgument(fmt::format("from_dlpack: memory at {} is null or not aligned for elements of {}",
                                      static_cast<const void*>(data), name_of(*dtype)));
  const std::shared_ptr<void> owner(given, [](DLManagedTensorVersioned* m) {
    if (m->deleter != nullptr) m->deleter(m);
  });
  return Tensor::of_others(owner, data, device, shape, *dtype);
}

}  // namespace sherd
