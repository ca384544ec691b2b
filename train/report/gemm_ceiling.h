// Measured throughput of all ranks in a plain matrix product, which training is compared with (StepResult::product_share).
#pragma once

#include <sherd/comm/core/communicator.h>
#include <sherd/kernels/device/device.h>
#include <sherd/kernels/device/dtype.h>

namespace sherd {

/// Measures the floating-point operations per second of C = A B in `dtype`, square and large, summed over the
/// ranks. All compute at the same time with their own threads: ranks that share a processor share its
/// ceiling. Takes a quarter of a second and at most an eighth of the memory limit, and restores the peaks of
/// memory. Collective; the same number on every rank. Call it before a model exists: memory limits and kept
/// blocks belong to the model afterwards.
[[nodiscard]] double gemm_ceiling(Communicator& world, Device& device, DType dtype);

}  // namespace sherd
