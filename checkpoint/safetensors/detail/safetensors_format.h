// Format details that readers and writers of safetensors files share.
#pragma once

#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/checkpoint/safetensors/safetensors.h>
#include <sherd/kernels/device/dtype.h>
#include <sherd/kernels/device/shape.h>

namespace sherd::safetensors {

static_assert(std::endian::native == std::endian::little,
              "tensor data is copied to and from files unchanged");

constexpr std::string_view kMetadata = "__metadata__";
constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;

struct Type {
  std::string_view name;
  int64_t bits;
  std::optional<DType> dtype;
};

/// Every element type that the format knows (safetensors 0.8).
constexpr Type kTypes[] = {
    {"F32", 32, DType::f32},
    {"BF16", 16, DType::bf16},
    {"F16", 16, DType::f16},
    {"F64", 64, DType::f64},
    {"I32", 32, DType::i32},
    {"I64", 64, DType::i64},
    {"U8", 8, DType::u8},
    {"BOOL", 8, std::nullopt},
    {"I8", 8, DType::i8},
    {"I16", 16, std::nullopt},
    {"U16", 16, std::nullopt},
    {"U32", 32, std::nullopt},
    {"U64", 64, std::nullopt},
    {"C64", 64, std::nullopt},
    {"F8_E4M3", 8, DType::f8_e4m3},
    {"F8_E5M2", 8, std::nullopt},
    {"F8_E8M0", 8, std::nullopt},
    {"F8_E4M3FNUZ", 8, std::nullopt},
    {"F8_E5M2FNUZ", 8, std::nullopt},
    {"F6_E2M3", 6, std::nullopt},
    {"F6_E3M2", 6, std::nullopt},
    {"F4", 4, std::nullopt},
};

constexpr const Type* find_type(std::string_view name) {
  for (const Type& type : kTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

constexpr std::string_view type_name(DType dtype) {
  for (const Type& type : kTypes) {
    if (type.dtype == dtype) return type.name;
  }
  return "";
}

/// Bytes of a tensor; nullopt when a size is negative or the product of its non-zero sizes passes 2^63 - 1,
/// so that later arithmetic on accepted shapes (rows, strides) cannot overflow either.
inline std::optional<int64_t> checked_bytes(const Shape& shape, int64_t element_bytes) {
  int64_t bytes = element_bytes;
  bool empty = false;
  for (int64_t size : shape) {
    if (size < 0) return std::nullopt;
    empty = empty || size == 0;
    if (size != 0 && __builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return empty ? 0 : bytes;
}

/// Bytes of a tensor whose shape is sound (checked_bytes()).
int64_t bytes_of(const SafetensorsSpec& tensor);

/// The first bytes of a file, up to its data: length and padded JSON. Data offsets follow the order of
/// `tensors`, whose names are distinct and whose shapes are sound.
/// @throws InvalidArgument for text that is not UTF-8 and for more than the format's 100 MB.
std::string make_header(const std::vector<SafetensorsSpec>& tensors,
                        const std::map<std::string, std::string>& metadata);

}  // namespace sherd::safetensors
