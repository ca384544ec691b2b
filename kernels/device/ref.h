// Untyped memory as kernels receive it.
#pragma once

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

}  // namespace sherd
