// Memory for matrices and messages in flight.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sherd {

/// Returns the bytes that messages and matrices in flight may take on a device with this much memory
/// (Device::total_memory), including the limit of its allocator, 0 for none. It is a 32nd, so that a
/// transformer's large matrices come in batches, but at least 256 MiB, and 256 MiB where the memory is the
/// host's.
inline int64_t default_transient_bytes(int64_t total_memory, int64_t limit_bytes) {
  constexpr int64_t kLeast = int64_t{256} << 20, kParts = 32;
  if (total_memory > 0 && limit_bytes > 0) total_memory = std::min(total_memory, limit_bytes);
  return std::max(kLeast, total_memory / kParts);
}

}  // namespace sherd
