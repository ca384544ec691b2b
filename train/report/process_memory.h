// Memory of this process, by kind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sherd/comm/core/communicator.h>

namespace sherd {

/// Bytes at one moment, as reported by the system and the C library (Linux, glibc).
struct ProcessMemory {
  int64_t resident = 0;
  int64_t files = 0;  // of these, pages of programs, libraries and other files
  int64_t heap = 0;   // taken by malloc from the system
  [[nodiscard]] static ProcessMemory now();
};

/// Growth of a process's memory since its start, by kind.
struct MemoryGrowth {
  int64_t resident = 0, at_start = 0;
  /// Host memory held by the ranks of this process, growth of malloc, and growth of mapped library files.
  int64_t ranks = 0, heap = 0, files = 0;
  int64_t grown() const { return resident - at_start; }
  int64_t explained() const { return ranks + heap + files; }
};

/// Returns the bytes of host memory that `device` holds for its rank: on a CPU all its memory, else its
/// staging memory.
int64_t held_by(Device& device);

/// Returns the growth of the calling rank's process; `held` of all ranks that are threads of it. Collective
/// over `world`.
[[nodiscard]] MemoryGrowth memory_growth(const ProcessMemory& start, Communicator& world);

/// Formats one line: "process: 123.4 MiB resident, 12.3 at start; ..."
std::string format_growth(const MemoryGrowth& growth);

}  // namespace sherd
