// Zero-copy exchange of tensors with other libraries by DLPack 1.0 (numpy, PyTorch, JAX, CuPy), both ways.
#pragma once

#include <sherd/kernels/device/stream.h>
#include <sherd/kernels/device/tensor.h>

struct DLManagedTensorVersioned;  // <dlpack/dlpack.h>, which callers include for its members; 1.0 or newer

namespace sherd {

/// `t` for another library: the same memory, row-major with explicit strides, device CPU or CUDA with the
/// device's ordinal. The caller owns the result; its last owner calls the deleter, once, on any thread.
/// Until then the memory stays allocated (and counted under the name that it has), so that the device must
/// outlive it.
///
/// Waits until all that is queued on `stream` is done: what that has written can be read at once, on any
/// stream. Later work of sherd on the same memory is not ordered with the other library's: synchronize there
/// first.
/// @param read_only sets DLPack's flag of that name, which tells the other side not to write. PyTorch takes
/// no such tensors.
/// @throws InvalidArgument for an undefined tensor.
DLManagedTensorVersioned* to_dlpack(Stream& stream, const Tensor& t, bool read_only = false);

/// Another library's memory as a tensor of `device`, without a copy. The allocator does not own it, so that
/// no memory table or limit counts it. The last tensor that shares it calls the deleter, on the thread that
/// releases it: operations queued by then must no longer use the memory (synchronize the stream first).
///
/// What the producer has queued must be done, or ordered before `device.compute()` by the caller: nothing
/// here waits.
/// @param allow_read_only the caller does not write into memory that its owner wants to stay as it is
/// @throws NotSupported for another major version of DLPack; InvalidArgument for memory of another device, a
/// dtype that DType does not have (bool is none: give it as uint8), strides other than those of a row-major
/// tensor without gaps (make it contiguous first), memory that is not aligned to its elements, and read-only
/// memory that is not allowed. `given` is still the caller's then, deleter uncalled.
Tensor from_dlpack(DLManagedTensorVersioned* given, Device& device, bool allow_read_only = false);

}  // namespace sherd
