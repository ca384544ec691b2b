// Dense, contiguous, row-major local tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include <sherd/base/error.h>
#include <sherd/kernels/device/device.h>
#include <sherd/kernels/device/dtype.h>
#include <sherd/kernels/device/memory_class.h>
#include <sherd/kernels/device/shape.h>

namespace sherd {

/// Typed view of device memory; copies share the memory, which exists as long as any of them.
/// A default-constructed tensor is undefined. Tensors may be empty (a size of 0) and still be defined.
class Tensor {
 public:
  Tensor() = default;
  /// Allocates uninitialised memory of `device`, counted under `kind` and `name`. The device must outlive the
  /// tensor.
  [[nodiscard]] static Tensor empty(Device& device, Shape shape, DType dtype, MemoryClass kind,
                                    std::string_view name);
  /// The same as an activation: for the code of models.
  [[nodiscard]] static Tensor empty(Device& device, Shape shape, DType dtype, std::string_view name) {
    return empty(device, std::move(shape), dtype, MemoryClass::activation, name);
  }

  /// Allocates memory of Device::staging(), which the host and the device's streams read and write. No queued
  /// operation uses it: the host may write at once.
  [[nodiscard]] static Tensor host(Device& device, Shape shape, DType dtype, MemoryClass kind,
                                   std::string_view name);
  /// The same as an activation.
  [[nodiscard]] static Tensor host(Device& device, Shape shape, DType dtype, std::string_view name) {
    return host(device, std::move(shape), dtype, MemoryClass::activation, name);
  }

  /// Allocates memory of `source`, counted by Device::allocator() (Allocator::allocate_from).
  static Tensor from(std::shared_ptr<MemorySource> source, Device& device, Shape shape, DType dtype,
                     MemoryClass kind, std::string_view name);

  /// Wraps memory that another library owns as a tensor of `device`, which can reach it. sherd's allocator
  /// does not count it. The host releases `owner` with the last tensor that shares the memory: queued
  /// operations must no longer use it then, as with any memory that other streams use (see Device).
  [[nodiscard]] static Tensor of_others(std::shared_ptr<void> owner, void* data, Device& device, Shape shape,
                                        DType dtype);

  /// Allocates memory at a place. Place::host: of Device::host_tier(), which no queued operation uses.
  [[nodiscard]] static Tensor at(Place place, Device& device, Shape shape, DType dtype, MemoryClass kind,
                                 std::string_view name);
  /// The same, of memory that earlier operations may still use: for operations queued on compute(), and those of other streams that
  /// have waited for an event of it.
  [[nodiscard]] static Tensor in_turn(Place place, Device& device, Shape shape, DType dtype, MemoryClass kind,
                                      std::string_view name);
  Place place() const;

  bool defined() const { return storage_ != nullptr; }
  /// Returns whether this tensor alone owns the memory, so that its content may be overwritten: no other
  /// tensor or view shares it, and it is neither an unowned_view() nor from() a source outside nor
  /// of_others().
  bool sole_owner() const;
  const Shape& shape() const { return shape_; }
  int64_t dim() const { return static_cast<int64_t>(shape_.size()); }
  int64_t size(int64_t d) const { return shape_.at(static_cast<size_t>(d)); }
  int64_t numel() const { return numel_; }
  int64_t nbytes() const { return numel_ * size_of(dtype_); }
  DType dtype() const { return dtype_; }
  Device& device() const;

  /// Same memory, other shape. @throws ShapeMismatch when the element counts differ.
  [[nodiscard]] Tensor view(Shape shape) const;
  /// Same memory, elements [begin, end) in row-major order, as a 1-D tensor.
  /// @throws InvalidArgument outside [0, numel].
  [[nodiscard]] Tensor flat(int64_t begin, int64_t end) const;
  [[nodiscard]] Tensor flat() const { return flat(0, numel_); }
  /// Rows [begin, end) of the first dimension.
  [[nodiscard]] Tensor rows(int64_t begin, int64_t end) const;
  /// Same memory and that of `next`, as a 1-D tensor, where `next` is of the same dtype and allocation and begins
  /// where this tensor ends; otherwise undefined.
  [[nodiscard]] Tensor followed_by(const Tensor& next) const;
  /// Same memory as nbytes() elements of u8.
  [[nodiscard]] Tensor bytes() const;
  /// Same memory as elements of another type, 1-D. @throws ShapeMismatch when the bytes are not a multiple of
  /// its size, or their start is not aligned for it.
  [[nodiscard]] Tensor as(DType dtype) const;
  /// A view that does not own the memory. Use it where stream order already keeps the owner alive, e.g. for a
  /// collective's buffer that is released only after compute() has waited for the collective (see Device).
  [[nodiscard]] Tensor unowned_view() const;

  void* raw() const { return data_; }
  /// @throws ShapeMismatch when T is not the tensor's dtype.
  template <class T>
  T* data() const {
    check_dtype(dtype_of<T>());
    return reinterpret_cast<T*>(data_);
  }

 private:
  struct Storage;
  template <class Allocate>
  static Tensor make(Device& device, Allocator& allocator, Shape shape, DType dtype, std::string_view name,
                     Allocate allocate);
  void check_dtype(DType wanted) const;

  std::shared_ptr<Storage> storage_;
  char* data_ = nullptr;
  Shape shape_;
  int64_t numel_ = 0;
  DType dtype_ = DType::f32;
};

}  // namespace sherd
