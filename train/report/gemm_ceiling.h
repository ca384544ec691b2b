// Measured throughput of all ranks in a plain matrix product: the ceiling that training is compared with.
#pragma once

#include <sherd/comm/communicator.h>
#include <sherd/kernels/device/device.h>
#include <sherd/kernels/device/dtype.h>

namespace sherd {

/// Floating-point operations per second of C = A B in `dtype`, square and large, summed over the ranks, which
/// all compute at the same time with the threads that they have: ranks that share a processor share its
/// ceiling. Takes a quarter of a second and at most an eighth of the memory limit, and leaves peaks of memory
/// as if it had not been. Collective; the same number on every rank. To be called before a model is there: a
/// limit, and kept blocks, are the model's afterwards.
double gemm_ceiling(Communicator& world, Device& device, DType dtype);

}  // namespace sherd
