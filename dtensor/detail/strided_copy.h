// Copies of blocks of a tensor that are not contiguous. Private to dtensor/.
#pragma once

#include <sherd/kernels/device/tensor.h>

namespace sherd {

/// A block of `blocks` runs of `run` elements in a tensor: run i starts at element begin + i * stride.
struct Strided {
  int64_t begin = 0, stride = 0;
};

/// The block [offset, offset + size) of dimension d in a tensor of `shape`, as runs.
struct DimBlock {
  Strided where;
  int64_t blocks = 0, run = 0;
  int64_t numel() const { return blocks * run; }
};
DimBlock dim_block(const Shape& shape, int d, int64_t offset, int64_t size);

/// Copies `blocks` runs of `run` elements from src to dst, queued on `stream`; the caller keeps the memory
/// alive as for ops::copy. Counted in Device::copied_bytes().
/// @throws ShapeMismatch when dtypes differ or a run is outside its tensor. The stream fails with
/// NotSupported when the runs are not contiguous and the device is not a CPU.
void strided_copy(Stream& stream, const Tensor& dst, Strided to, const Tensor& src, Strided from,
                  int64_t blocks, int64_t run);

}  // namespace sherd
