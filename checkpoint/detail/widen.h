// Elements of narrower float types as f32. Private to checkpoint/.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include <sherd/kernels/device/dtype.h>

namespace sherd {

/// Returns whether stored elements can become f32 without rounding.
constexpr bool widens_to_f32(DType t) { return t == DType::f32 || t == DType::bf16 || t == DType::f16; }

namespace detail {
// Backwards, in place: no element is overwritten before it is read.
template <class T>
void widen(std::vector<float>& values) {
  const char* raw = reinterpret_cast<const char*>(values.data());
  for (size_t i = values.size(); i-- > 0;) {
    T v;
    std::memcpy(&v, raw + i * sizeof(T), sizeof(T));
    values[i] = static_cast<float>(v);
  }
}
}  // namespace detail

/// `values` begins with values.size() packed elements of dtype `t`; afterwards it holds them as floats. Bytes of dtypes
/// that are not widened stay.
inline void widen_in_place(DType t, std::vector<float>& values) {
  if (t == DType::bf16) detail::widen<bf16>(values);
  if (t == DType::f16) detail::widen<f16>(values);
}

}  // namespace sherd
