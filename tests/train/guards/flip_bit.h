// Spoilt memory for the tests of guards.
#pragma once

#include <cstdint>
#include <vector>

#include <sherd/kernels/ops.h>

namespace sherd::test {

/// Flips the lowest bit of an element's first byte.
inline void flip_lowest_bit(Stream& s, const Tensor& t, int64_t element) {
  const Tensor at = t.flat(element, element + 1).bytes();
  std::vector<uint8_t> bytes(static_cast<size_t>(at.numel()));
  ops::copy_to_host(s, bytes.data(), at);
  bytes.front() ^= 1;
  ops::copy_from_host(s, at, bytes.data(), bytes.size());
  s.synchronize();
}

}  // namespace sherd::test
