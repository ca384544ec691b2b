// Hardware profile of this machine, measured.
#pragma once

#include <sherd/comm/launcher.h>
#include <sherd/train/plan/hardware_profile.h>

namespace sherd {

/// Measures products by size and of odd sizes, copies, the least time of an operation and all-gathers by size. All ranks measure at the
/// same time, as ranks that train share their machine. Takes some seconds. The link between hosts is that of the
/// world. Collective; rank 0's figures are the profile.
[[nodiscard]] HardwareProfile measure_hardware(RankContext& rank);

/// Returns the bytes of this machine's memory.
[[nodiscard]] int64_t memory_of_host();
/// Returns the bytes of the rank's GPU or, on CPUs, an equal part of this machine's memory, as if it had all ranks.
[[nodiscard]] int64_t memory_of(const RankContext& rank);

}  // namespace sherd
