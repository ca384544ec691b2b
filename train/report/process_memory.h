// Memory of this process, by kind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sherd/comm/communicator.h>

namespace sherd {

/// Bytes at one moment, as the system and the C library tell them (Linux, glibc).
struct ProcessMemory {
  int64_t resident = 0;
  int64_t files = 0;  // of these, pages of programs, libraries and other files
  int64_t heap = 0;   // what malloc has of the system
  static ProcessMemory now();
};

/// Where the memory went that a process has taken since it began.
struct MemoryGrowth {
  int64_t resident = 0, at_start = 0;
  /// Held by the ranks of this process in host memory, what malloc, and what files of libraries added.
  int64_t ranks = 0, heap = 0, files = 0;
  int64_t grown() const { return resident - at_start; }
  int64_t explained() const { return ranks + heap + files; }
};

/// Bytes of host memory that `device` holds for its rank: on a CPU all its memory, else what it copies
/// through.
int64_t held_by(Device& device);

/// Of the calling rank's process; `held` of all ranks that are threads of it. Collective over `world`.
MemoryGrowth memory_growth(const ProcessMemory& start, Communicator& world);

/// One line: "process: 123.4 MiB resident, 12.3 at start; ..."
std::string format_growth(const MemoryGrowth& growth);

}  // namespace sherd
