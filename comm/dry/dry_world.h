// World of dry runs: one rank of many, whose collectives are counted and move nothing.
#pragma once

#include <cstdint>
#include <memory>

#include <sherd/comm/core/communicator.h>
#include <sherd/kernels/device/dry/dry_device.h>

namespace sherd {

/// Returns the communicator of `rank` in a world of `size` ranks that all do as this one does. Calls have their
/// arguments checked, are counted, and enter the device's record. Groups are those of subgroup() and clone().
/// @param communicator_bytes device memory of each communicator of several ranks, as a message named "NCCL"
/// @throws InvalidArgument for a rank outside of the world; split() into other groups throws NotSupported.
[[nodiscard]] std::shared_ptr<Communicator> make_dry_world(std::shared_ptr<DryDevice> device, int rank,
                                                           int size, int64_t communicator_bytes = 0);

}  // namespace sherd
