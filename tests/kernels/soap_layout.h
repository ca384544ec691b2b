// The state of a SOAP matrix in one piece of memory.
#pragma once

#include <cstdint>
#include <utility>

#include <sherd/kernels/soap/soap.h>

namespace sherd::test {

/// Pointers into `next`; a side longer than `max_dim` has no factor.
template <class T>
SoapStateOf<T> soap_layout(T* next, int64_t m, int64_t n, int64_t max_dim) {
  const auto take = [&](int64_t count) { return std::exchange(next, next + count); };
  SoapStateOf<T> s;
  if (m <= max_dim) s = {.left = take(m * m), .left_basis = take(m * m), .left_values = take(m)};
  if (n <= max_dim) {
    s.right = take(n * n);
    s.right_basis = take(n * n);
    s.right_values = take(n);
  }
  s.exp_avg = take(m * n);
  s.exp_avg_sq = take(m * n);
  s.steps = take(1);
  return s;
}

}  // namespace sherd::test
