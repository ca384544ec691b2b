// Typed access of the reference kernels to untyped memory. Private to kernels.
#pragma once

#include <sherd/base/error.h>
#include <sherd/kernels/device/ref.h>

namespace sherd::reference {

/// Element i, widened to double (exact for every dtype but i64).
inline double get(Ref r, int64_t i) {
  return with_dtype(r.dtype, [&]<class T>(T) {
    const T element = r.as<T>()[i];
    if constexpr (std::is_class_v<T>)
      return static_cast<double>(static_cast<float>(element));
    else
      return static_cast<double>(element);
  });
}

/// Stores v as element i; the 16-bit formats round through f32.
inline void put(Ref r, int64_t i, double v) {
  with_dtype(r.dtype, [&]<class T>(T) { r.as<T>()[i] = to_element<T>(v); });
}

/// Element i += v, one addition in its dtype, f32 or f64.
inline void accumulate(Ref r, int64_t i, double v) {
  if (r.dtype == DType::f64)
    r.as<double>()[i] += v;
  else
    r.as<float>()[i] += static_cast<float>(v);
}

}  // namespace sherd::reference
