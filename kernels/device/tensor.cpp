#include <sherd/kernels/device/tensor.h>

#include <fmt/format.h>

namespace sherd {

struct Tensor::Storage {
  Device* device;
  Allocator* allocator;
  void* data;
  bool foreign = false;                   // memory of a source that may have other users
  std::shared_ptr<void> owner = nullptr;  // of memory that is of_others()
  ~Storage() {
    if (allocator) allocator->release(data);
  }
};

Tensor Tensor::empty(Device& device, Shape shape, DType dtype, MemoryClass kind, std::string_view name) {
  return make(device, device.allocator(), std::move(shape), dtype, name,
              [&](int64_t bytes) { return device.allocator().allocate(bytes, kind, name); });
}

Tensor Tensor::host(Device& device, Shape shape, DType dtype, MemoryClass kind, std::string_view name) {
  return make(device, device.staging(), std::move(shape), dtype, name,
              [&](int64_t bytes) { return device.staging().allocate(bytes, kind, name, true); });
}

Tensor Tensor::at(Place place, Device& device, Shape shape, DType dtype, MemoryClass kind,
                  std::string_view name) {
  if (place == Place::device) return empty(device, std::move(shape), dtype, kind, name);
  return make(device, device.host_tier(), std::move(shape), dtype, name,
              [&](int64_t bytes) { return device.host_tier().allocate(bytes, kind, name, true); });
}

Tensor Tensor::in_turn(Place place, Device& device, Shape shape, DType dtype, MemoryClass kind,
                       std::string_view name) {
  if (place == Place::device) return empty(device, std::move(shape), dtype, kind, name);
  return make(device, device.host_tier(), std::move(shape), dtype, name,
              [&](int64_t bytes) { return device.host_tier().allocate(bytes, kind, name); });
}

Place Tensor::place() const {
  if (!storage_ || storage_->allocator == &storage_->device->allocator()) return Place::device;
  return storage_->allocator == &storage_->device->host_tier() ? Place::host : Place::device;
}

Tensor Tensor::from(std::shared_ptr<MemorySource> source, Device& device, Shape shape, DType dtype,
                    MemoryClass kind, std::string_view name) {
  Tensor t = make(device, device.allocator(), std::move(shape), dtype, name, [&](int64_t bytes) {
    return device.allocator().allocate_from(std::move(source), bytes, kind, name);
  });
  t.storage_->foreign = true;
  return t;
}

Tensor Tensor::of_others(std::shared_ptr<void> owner, void* data, Device& device, Shape shape, DType dtype) {
  for (int64_t d : shape)
    if (d < 0)
      throw InvalidArgument(
          fmt::format("tensor of others' memory of shape {}: a size is negative", to_string(shape)));
  Tensor t;
  t.numel_ = numel_of(shape);
  t.shape_ = std::move(shape);
  t.dtype_ = dtype;
  t.data_ = static_cast<char*>(data);
  t.storage_ = std::shared_ptr<Storage>(new Storage{&device, nullptr, nullptr, true, std::move(owner)});
  return t;
}

template <class Allocate>
Tensor Tensor::make(Device& device, Allocator& allocator, Shape shape, DType dtype, std::string_view name,
                    Allocate allocate) {
  for (int64_t d : shape)
    if (d < 0)
      throw InvalidArgument(
          fmt::format("tensor '{}' of shape {}: a size is negative", name, to_string(shape)));
  Tensor t;
  t.numel_ = numel_of(shape);
  t.shape_ = std::move(shape);
  t.dtype_ = dtype;
  const int64_t bytes = t.numel_ * size_of(dtype);
  void* p = allocate(bytes);
  t.storage_ = std::shared_ptr<Storage>(new Storage{&device, &allocator, p});
  t.data_ = static_cast<char*>(p);
  return t;
}

Device& Tensor::device() const {
  if (!storage_) throw InvalidArgument("device() of an undefined tensor");
  return *storage_->device;
}

Tensor Tensor::view(Shape shape) const {
  if (!defined()) throw InvalidArgument("view() of an undefined tensor");
  if (numel_of(shape) != numel_)
    throw ShapeMismatch(fmt::format("view of a tensor of shape {} as {}: element counts differ",
                                    to_string(shape_), to_string(shape)));
  Tensor t = *this;
  t.shape_ = std::move(shape);
  return t;
}

Tensor Tensor::flat(int64_t begin, int64_t end) const {
  if (!defined()) throw InvalidArgument("flat() of an undefined tensor");
  if (begin < 0 || end < begin || end > numel_)
    throw InvalidArgument(
        fmt::format("flat range [{}, {}) of a tensor with {} elements", begin, end, numel_));
  Tensor t = *this;
  t.shape_ = {end - begin};
  t.numel_ = end - begin;
  t.data_ = data_ + begin * size_of(dtype_);
  return t;
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  if (!defined() || shape_.empty()) throw InvalidArgument("rows() of an undefined tensor or a scalar");
  const int64_t w = row_size(shape_);
  Shape shape = shape_;
  shape[0] = end - begin;
  return flat(begin * w, end * w).view(std::move(shape));
}

Tensor Tensor::followed_by(const Tensor& next) const {
  if (!defined() || storage_ != next.storage_ || dtype_ != next.dtype_ || data_ + nbytes() != next.data_)
    return {};
  Tensor t = *this;
  t.numel_ += next.numel_;
  t.shape_ = {t.numel_};
  return t;
}

Tensor Tensor::bytes() const {
  if (!defined()) throw InvalidArgument("bytes() of an undefined tensor");
  Tensor t = *this;
  t.numel_ = nbytes();
  t.shape_ = {t.numel_};
  t.dtype_ = DType::u8;
  return t;
}

Tensor Tensor::as(DType dtype) const {
  if (!defined()) throw InvalidArgument("as() of an undefined tensor");
  const int64_t size = size_of(dtype);
  if (nbytes() % size != 0 || reinterpret_cast<uintptr_t>(data_) % static_cast<uintptr_t>(size) != 0)
    throw ShapeMismatch(fmt::format("as({}) of {} bytes at an address that is {} modulo {}", name_of(dtype),
                                    nbytes(),
                                    reinterpret_cast<uintptr_t>(data_) % static_cast<uintptr_t>(size), size));
  Tensor t = *this;
  t.numel_ = nbytes() / size;
  t.shape_ = {t.numel_};
  t.dtype_ = dtype;
  return t;
}

Tensor Tensor::unowned_view() const {
  if (!defined()) throw InvalidArgument("unowned_view() of an undefined tensor");
  Tensor t = *this;
  t.storage_ = std::shared_ptr<Storage>(new Storage{storage_->device, nullptr, nullptr});
  return t;
}

bool Tensor::sole_owner() const {
  return storage_.use_count() == 1 && storage_->allocator != nullptr && !storage_->foreign;
}

void Tensor::check_dtype(DType wanted) const {
  if (wanted != dtype_)
    throw ShapeMismatch(fmt::format("a tensor of {} was read as {}", name_of(dtype_), name_of(wanted)));
}

}  // namespace sherd
