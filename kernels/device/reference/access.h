// Typed access of the reference kernels to untyped memory. Private to kernels.
#pragma once

#include <sherd/kernels/device/error.h>
#include <sherd/kernels/device/ref.h>

namespace sherd::reference {

/// Element i, widened to double (exact for every dtype but i64).
inline double get(Ref r, int64_t i) {
  switch (r.dtype) {
    case DType::f32:
      return r.as<float>()[i];
    case DType::bf16:
      return float(r.as<bf16>()[i]);
    case DType::f16:
      return float(r.as<f16>()[i]);
    case DType::f64:
      return r.as<double>()[i];
    case DType::i32:
      return r.as<int32_t>()[i];
    case DType::i64:
      return static_cast<double>(r.as<int64_t>()[i]);
    case DType::u8:
      return r.as<uint8_t>()[i];
  }
  throw InvalidArgument("reference kernels: unknown dtype");
}

/// Stores v as element i; the 16-bit formats round through f32.
inline void put(Ref r, int64_t i, double v) {
  switch (r.dtype) {
    case DType::f32:
      r.as<float>()[i] = static_cast<float>(v);
      return;
    case DType::bf16:
      r.as<bf16>()[i] = bf16(static_cast<float>(v));
      return;
    case DType::f16:
      r.as<f16>()[i] = f16(static_cast<float>(v));
      return;
    case DType::f64:
      r.as<double>()[i] = v;
      return;
    case DType::i32:
      r.as<int32_t>()[i] = static_cast<int32_t>(v);
      return;
    case DType::i64:
      r.as<int64_t>()[i] = static_cast<int64_t>(v);
      return;
    case DType::u8:
      r.as<uint8_t>()[i] = static_cast<uint8_t>(v);
      return;
  }
  throw InvalidArgument("reference kernels: unknown dtype");
}

/// Element i += v, one addition in its dtype, f32 or f64.
inline void accumulate(Ref r, int64_t i, double v) {
  if (r.dtype == DType::f64)
    r.as<double>()[i] += v;
  else
    r.as<float>()[i] += static_cast<float>(v);
}

}  // namespace sherd::reference
