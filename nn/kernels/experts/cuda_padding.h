// Padding among the rows of a call. Private to the experts' CUDA kernels.
#pragma once

#include <cstdint>

namespace sherd::cuda {

/// is_padding() on the device.
template <class Args>
__device__ bool row_is_padding(const Args& a, int64_t r) {
  return a.lengths != nullptr &&
         a.first_position + (a.first_row + r) % a.seq >= a.lengths[(a.first_row + r) / a.seq];
}

}  // namespace sherd::cuda
