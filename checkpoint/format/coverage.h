// Test that boxes cover a tensor exactly once.
#pragma once

#include <optional>
#include <span>
#include <string>

#include <sherd/dtensor/index.h>

namespace sherd {

/// The first element (row-major order of its index) that the boxes do not cover exactly once.
struct CoverageFault {
  Shape at;
  /// Boxes that hold it: 0 = missing, 2 or more = several times.
  int64_t times = 0;
};

/// Nothing when every element of a tensor of `shape` lies in exactly one box. Boxes of size 0 count for
/// nothing. Exact, in the time that sorting the boxes takes: they tile the tensor if and only if their signed
/// corners add up to the tensor's own (the mixed difference of the sum of their indicator functions).
/// @pre 1 to 8 dimensions, fewer than 2^63 elements, every box inside the tensor.
std::optional<CoverageFault> coverage_fault(const Shape& shape, std::span<const Box> boxes);

/// The part of a that lies in b, in global coordinates; nothing when they do not meet.
std::optional<Box> intersect(const Box& a, const Box& b);

}  // namespace sherd
