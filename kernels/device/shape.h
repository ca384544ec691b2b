// Shapes: sizes per dimension, outermost first. An empty shape is a scalar with one element.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sherd {

using Shape = std::vector<int64_t>;

/// Product of the sizes; 1 for a scalar.
inline int64_t numel_of(const Shape& shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

/// The shape, or {1} for a scalar's.
inline Shape at_least_1d(const Shape& shape) { return shape.empty() ? Shape{1} : shape; }

/// Elements of one row (everything but the first dimension); 1 for scalars and vectors.
inline int64_t row_size(const Shape& shape) {
  int64_t n = 1;
  for (size_t i = 1; i < shape.size(); ++i) n *= shape[i];
  return n;
}

/// Rows (size of the first dimension); a scalar has one row.
inline int64_t row_count(const Shape& shape) { return shape.empty() ? 1 : shape[0]; }

/// "[3, 4]"
inline std::string to_string(const Shape& shape) {
  std::string s = "[";
  for (size_t i = 0; i < shape.size(); ++i) s += (i ? ", " : "") + std::to_string(shape[i]);
  return s + "]";
}

}  // namespace sherd
