// Count of non-finite values.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/dtype.h>

namespace sherd {

/// Non-finite elements (infinite or NaN) of a sequence.
struct NotFinite {
  int64_t count = 0;
  /// Index of the first one in the sequence; 0 when absent.
  int64_t first = 0;
  bool operator==(const NotFinite&) const = default;
};

/// Adds the `count` elements at `data` (host memory, of any alignment), which are elements [at, at + count)
/// of the sequence. Integers are always finite.
void count_not_finite(DType dtype, const void* data, int64_t count, int64_t at, NotFinite& into);

}  // namespace sherd
