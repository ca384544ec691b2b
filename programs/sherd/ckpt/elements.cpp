#include "elements.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <sherd/base/error.h>
#include <sherd/kernels/device/dtype.h>

namespace sherd::tools {
namespace {

template <class T>
T element(const void* data, int64_t i) {
  T v;
  std::memcpy(&v, static_cast<const char*>(data) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return v;
}

// Exact for every dtype: 64-bit integers need more than double holds.
template <class T>
auto exact(T v) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<long double>(v);
  } else if constexpr (std::is_same_v<T, double>) {
    return v;
  } else {
    return static_cast<float>(v);
  }
}

template <class From, class To>
std::optional<int64_t> convert_as(const void* from, void* to, int64_t count) {
  std::optional<int64_t> lost;
  for (int64_t i = 0; i < count; ++i) {
    const auto wide = exact(element<From>(from, i));
    const auto rounded = static_cast<To>(static_cast<float>(wide));
    if (!lost && std::isfinite(wide) && !std::isfinite(exact(rounded))) lost = i;
    std::memcpy(static_cast<char*>(to) + i * static_cast<int64_t>(sizeof(To)), &rounded, sizeof(To));
  }
  return lost;
}

void add_difference(long double a, long double b, Difference& into) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return;
  long double absolute = std::abs(a - b), relative = absolute / std::max(std::abs(a), std::abs(b));
  if (!std::isfinite(a) || !std::isfinite(b)) absolute = relative = std::numeric_limits<double>::infinity();
  into.max_absolute = std::max(into.max_absolute, static_cast<double>(absolute));
  into.max_relative = std::max(into.max_relative, static_cast<double>(relative));
}

template <class A, class B>
void compare_as(const void* a, const void* b, int64_t count, Difference& into) {
  for (int64_t i = 0; i < count; ++i) {
    const A x = element<A>(a, i);
    const B y = element<B>(b, i);
    const auto p = exact(x);
    const auto q = exact(y);
    if constexpr (std::is_same_v<A, B>) {
      if (std::memcmp(&x, &y, sizeof(A)) == 0) continue;
    } else {
      if (static_cast<long double>(p) == static_cast<long double>(q) || (std::isnan(p) && std::isnan(q)))
        continue;
    }
    ++into.differing;
    if (!into.first) into.first = into.elements + i;
    add_difference(p, q, into);
  }
}

}  // namespace

Shape index_of(const Shape& shape, int64_t element) {
  Shape index(shape.size());
  for (size_t d = shape.size(); d-- > 0; element /= shape[d]) index[d] = element % shape[d];
  return index;
}

std::optional<int64_t> convert(const void* from, DType from_type, void* to, DType to_type, int64_t count) {
  if (!is_float(from_type) || !is_float(to_type) || to_type == DType::f64)
    throw InvalidArgument(std::string("convert: ") + name_of(from_type) + " to " + name_of(to_type));
  return with_dtype(from_type, [&](auto f) {
    return with_dtype(to_type, [&](auto t) { return convert_as<decltype(f), decltype(t)>(from, to, count); });
  });
}

void compare(const void* a, DType a_type, const void* b, DType b_type, int64_t count, Difference& into) {
  if (a_type != b_type || std::memcmp(a, b, static_cast<size_t>(count * size_of(a_type))) != 0)
    with_dtype(a_type, [&](auto x) {
      with_dtype(b_type, [&](auto y) { compare_as<decltype(x), decltype(y)>(a, b, count, into); });
    });
  into.elements += count;
}

}  // namespace sherd::tools
