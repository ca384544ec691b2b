// Test that boxes cover a tensor exactly once.
#pragma once

#include <optional>
#include <span>
#include <string>

#include <sherd/dtensor/index.h>

namespace sherd {

/// First element (row-major order of its index) that the boxes do not cover exactly once.
struct CoverageFault {
  Shape at;
  /// Number of boxes that hold it: 0 = missing, 2 or more = several times.
  int64_t times = 0;
};

/// Returns nullopt when every element of a tensor of `shape` is in exactly one box. Boxes of size 0 are
/// ignored. Exact, in the time of sorting the boxes: they tile the tensor if and only if their signed corners
/// add up to the tensor's own (the mixed difference of the sum of their indicator functions).
/// @pre 1 to 8 dimensions, fewer than 2^63 elements, every box inside the tensor.
[[nodiscard]] std::optional<CoverageFault> coverage_fault(const Shape& shape, std::span<const Box> boxes);

/// Returns the part of a that is in b, in global coordinates; nullopt when they do not meet.
[[nodiscard]] std::optional<Box> intersect(const Box& a, const Box& b);

}  // namespace sherd
