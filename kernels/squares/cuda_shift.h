// Shifts with a PTX instruction of their own, and their twins for a host compiler. Private to CUDA kernels.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/cuda/launch.h>

namespace sherd::cuda {

/// value << by; 0 when `by` is 32 or more.
__device__ inline uint32_t shift_left(uint32_t value, uint32_t by) {
#ifdef __CUDACC__
  return __funnelshift_lc(0u, value, by);
#else
  return by < 32 ? value << by : 0;
#endif
}

}  // namespace sherd::cuda
