// Dense peak of the ranks' devices: what MFU is a part of.
#pragma once

#include <optional>

#include <sherd/comm/core/communicator.h>
#include <sherd/kernels/device/dtype.h>
#include <sherd/kernels/device/hardware.h>

namespace sherd {

/// Returns the FLOP/s that data sheets give for dense products in `dtype` on the GPUs of all ranks (profile_of_device(),
/// HardwareProfile::dense_peak()). A GPU counts once, however many ranks share it. nullopt where the peak of any rank's
/// device is unknown, as a CPU's is. Collective; queues on `stream` and blocks the host; the same on every rank.
/// @param hardware this rank's (hardware_of()). tf32: of f32 products (DeviceOptions::tf32).
[[nodiscard]] std::optional<double> dense_peak(Communicator& world, Stream& stream, const Hardware& hardware,
                                               DType dtype, bool tf32);

}  // namespace sherd
