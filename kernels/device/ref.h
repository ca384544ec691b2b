// Untyped memory as kernels receive it.
#pragma once

#include <cstdint>
#include <initializer_list>

#include <sherd/kernels/device/dtype.h>

namespace sherd {

/// Untyped pointer with its dtype.
struct Ref {
  void* data = nullptr;
  DType dtype = DType::f32;
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

/// Returns the bytes of one pass over `elements` of each, null ones left out.
inline int64_t bytes_of(std::initializer_list<Ref> refs, int64_t elements) {
  int64_t bytes = 0;
  for (const Ref& r : refs)
    if (r.data != nullptr) bytes += elements * size_of(r.dtype);
  return bytes;
}

}  // namespace sherd
