// Conversion and comparison of raw elements in host memory with a dtype known at run time.
#pragma once

#include <cstdint>
#include <optional>

#include <sherd/kernels/device/dtype.h>
#include <sherd/kernels/device/shape.h>

namespace sherd::tools {

constexpr bool is_float(DType t) {
  return t == DType::f32 || t == DType::bf16 || t == DType::f16 || t == DType::f64;
}

/// Indices in each dimension of an element in row-major order.
Shape index_of(const Shape& shape, int64_t element);

/// Rounds `count` elements to nearest, ties to even (f64 through f32). `to` is f32, bf16 or f16; both are
/// floats. @returns the first of them, if any, that is finite and became infinite.
std::optional<int64_t> convert(const void* from, DType from_type, void* to, DType to_type, int64_t count);

/// Differences of two tensors of one shape, element by element.
struct Difference {
  int64_t elements = 0;
  /// Elements with other bits, or with another value where the dtypes differ. Two NaNs are one value.
  int64_t differing = 0;
  /// The first of them, in row-major order.
  std::optional<int64_t> first;
  /// |a - b|, and |a - b| / max(|a|, |b|): infinite for a NaN or an infinity against another value.
  double max_absolute = 0, max_relative = 0;
};

/// Adds `count` more elements. Equal bits count as equal whatever they mean.
void compare(const void* a, DType a_type, const void* b, DType b_type, int64_t count, Difference& into);

}  // namespace sherd::tools
