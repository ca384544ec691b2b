// Element types, and the float formats of 16 and 8 bits.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <sherd/base/enum_table.h>

namespace sherd {

enum class DType : uint8_t { f32, bf16, i8, f16, f64, i32, i64, u8, f8_e4m3 };

/// Bytes of one element.
constexpr int64_t size_of(DType t) {
  switch (t) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::u8:
    case DType::i8:
    case DType::f8_e4m3:
      return 1;
  }
  return 0;
}

/// Short names as printed in messages.
inline constexpr EnumTable<DType, 9> kDTypeNames{"f32", "bf16", "i8", "f16",    "f64",
                                                 "i32", "i64",  "u8", "f8_e4m3"};
constexpr const char* name_of(DType t) { return kDTypeNames.name(t); }

/// The upper half of an IEEE binary32; conversions round to nearest, ties to even, and keep NaN a NaN.
struct bf16 {
  uint16_t bits;
  bf16() = default;
  explicit bf16(float v) {
    uint32_t u = std::bit_cast<uint32_t>(v);
    bits = (u & 0x7fffffffu) > 0x7f800000u ? static_cast<uint16_t>((u >> 16) | 0x40u)
                                           : static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

/// IEEE binary16; conversions round to nearest, ties to even, with subnormals.
struct f16 {
  uint16_t bits;
  f16() = default;
  explicit f16(float v) {
    const uint32_t u = std::bit_cast<uint32_t>(v);
    const uint32_t sign = (u >> 16) & 0x8000u;
    const uint32_t a = u & 0x7fffffffu;
    if (a > 0x7f800000u) {
      bits = static_cast<uint16_t>(sign | 0x7e00u);
    } else if (a >= 0x477ff000u) {  // rounds to 2^16 or more
      bits = static_cast<uint16_t>(sign | 0x7c00u);
    } else if (a < 0x38800000u) {  // subnormal half: add a constant that puts the ulp at 2^-24
      const float r = std::bit_cast<float>(a) + 0.5f;
      bits = static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(r) - 0x3f000000u));
    } else {
      bits = static_cast<uint16_t>(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
    }
  }
  explicit operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t e = (bits >> 10) & 0x1fu;
    const uint32_t m = bits & 0x3ffu;
    if (e == 31) return std::bit_cast<float>(sign | 0x7f800000u | (m << 13));
    if (e == 0) {
      const float f = static_cast<float>(m) * 0x1p-24f;
      return sign ? -f : f;
    }
    return std::bit_cast<float>(sign | ((e + 112u) << 23) | (m << 13));
  }
};

/// E4M3 of Micikevicius et al. (2022), arXiv 2209.05433, PyTorch's float8_e4m3fn: no infinity, largest value 448. Conversions round
/// to nearest, ties to even; NaN and what is out of range become NaN.
struct f8_e4m3 {
  uint8_t bits;
  f8_e4m3() = default;
  explicit f8_e4m3(float v) {
    const uint32_t u = std::bit_cast<uint32_t>(v), a = u & 0x7fffffffu;
    const auto sign = static_cast<uint8_t>(u >> 24 & 0x80u);
    uint32_t r = 0x7f;
    if (a < 0x3c800000u) {  // below 2^-6: subnormal; add a constant that puts the ulp at 2^-9
      r = std::bit_cast<uint32_t>(std::bit_cast<float>(a) + 0x1p14f) - 0x46800000u;
    } else if (a < 0x43e80000u) {  // below 464, which rounds to 480
      r = (a - 0x3c000000u + 0x7ffffu + ((a >> 20) & 1u)) >> 20;
    } else if (a == 0x43e80000u) {
      r = 0x7e;  // a tie between 448 and 480
    }
    bits = static_cast<uint8_t>(sign | r);
  }
  explicit operator float() const {
    const uint32_t sign = uint32_t{bits & 0x80u} << 24, a = bits & 0x7fu;
    if (a == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
    const float f = a < 8 ? static_cast<float>(a) * 0x1p-9f : std::bit_cast<float>((a + 960) << 20);
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(f));
  }
};

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<f16>() {
  return DType::f16;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::i64;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::u8;
}
template <>
constexpr DType dtype_of<int8_t>() {
  return DType::i8;
}
template <>
constexpr DType dtype_of<f8_e4m3>() {
  return DType::f8_e4m3;
}

/// The element nearest to v; the 16- and 8-bit floats round through f32.
template <class T>
T to_element(double v) {
  if constexpr (std::is_class_v<T>)
    return T(static_cast<float>(v));
  else
    return static_cast<T>(v);
}

/// Returns f(T{}), T being the element type.
template <class F>
auto with_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(bf16{});
    case DType::f16:
      return f(f16{});
    case DType::f64:
      return f(double{});
    case DType::i32:
      return f(int32_t{});
    case DType::i64:
      return f(int64_t{});
    case DType::i8:
      return f(int8_t{});
    case DType::f8_e4m3:
      return f(f8_e4m3{});
    case DType::u8:
      break;
  }
  return f(uint8_t{});
}

}  // namespace sherd
