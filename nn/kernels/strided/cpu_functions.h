// Scalar functions of strided maps on the host. Private to the reference and CPU kernels.
#pragma once

#include <sherd/base/error.h>
#include <sherd/nn/kernels/strided/strided.h>

namespace sherd::host {

/// Calls call(g) with g(a, b, c) = f. M has the mathematical functions of the number type.
template <class M, class Call>
void with_map_function(MapFunction f, Call&& call) {
  using T = typename M::Number;
  switch (f) {
    case MapFunction::copy:
      return call([](T a, T, T) { return a; });
    case MapFunction::add:
      return call([](T a, T b, T) { return a + b; });
    case MapFunction::subtract:
      return call([](T a, T b, T) { return a - b; });
    case MapFunction::multiply:
      return call([](T a, T b, T) { return a * b; });
    case MapFunction::divide:
      return call([](T a, T b, T) { return a / b; });
    case MapFunction::power:
      return call([](T a, T b, T) { return M::pow(a, b); });
    case MapFunction::maximum:
      return call([](T a, T b, T) { return a > b || a != a ? a : b; });
    case MapFunction::less:
      return call([](T a, T b, T) { return a < b ? T(1) : T(0); });
    case MapFunction::less_equal:
      return call([](T a, T b, T) { return a <= b ? T(1) : T(0); });
    case MapFunction::equal:
      return call([](T a, T b, T) { return a == b ? T(1) : T(0); });
    case MapFunction::exp:
      return call([](T a, T, T) { return M::exp(a); });
    case MapFunction::log:
      return call([](T a, T, T) { return M::log(a); });
    case MapFunction::sqrt:
      return call([](T a, T, T) { return M::sqrt(a); });
    case MapFunction::tanh:
      return call([](T a, T, T) { return M::tanh(a); });
    case MapFunction::sigmoid:
      return call([](T a, T, T) { return M::sigmoid(a); });
    case MapFunction::where:
      return call([](T a, T b, T c) { return a == T(0) ? c : b; });
    case MapFunction::divide_slope:
      return call([](T a, T b, T c) { return -(a / c) * (b / c); });
    case MapFunction::power_base:
      return call([](T a, T b, T c) { return c == T(0) ? T(0) : a * c * M::pow(b, c - T(1)); });
    case MapFunction::power_exponent:
      return call([](T a, T b, T c) { return b == T(0) && c >= T(0) ? T(0) : a * M::pow(b, c) * M::log(b); });
    case MapFunction::maximum_share:
      return call([](T a, T b, T c) { return b > c ? a : b == c ? a / T(2) : T(0); });
    case MapFunction::sqrt_slope:
      return call([](T a, T b, T) { return a / (T(2) * b); });
    case MapFunction::tanh_slope:
      return call([](T a, T b, T) { return a * ((T(1) - b) * (T(1) + b)); });
    case MapFunction::sigmoid_slope:
      return call([](T a, T b, T) { return a * (b * (T(1) - b)); });
  }
  throw InvalidArgument("strided maps: unknown function");
}

}  // namespace sherd::host
