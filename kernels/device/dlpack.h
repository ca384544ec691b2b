// Zero-copy exchange of tensors with other libraries by DLPack 1.0 (numpy, PyTorch, JAX, CuPy), both ways.
#pragma once

#include <sherd/kernels/device/stream.h>
#include <sherd/kernels/device/tensor.h>

struct DLManagedTensorVersioned;  // <dlpack/dlpack.h>, which callers include for its members; 1.0 or newer

namespace sherd {

/// Returns `t` for another library: the same memory, row-major with explicit strides, device CPU or CUDA with
/// the device's ordinal. The caller owns the result; its last owner calls the deleter, once, on any thread.
/// Until then the memory stays allocated and counted under its name, so that the device must outlive it.
///
/// Waits until everything queued on `stream` is done: its results can be read at once, on any stream. Later
/// operations of sherd on the same memory are not ordered with the other library's: synchronize there first.
/// @param read_only sets DLPack's flag of that name, which forbids writes by the other side. PyTorch refuses
/// such tensors.
/// @throws InvalidArgument for an undefined tensor.
[[nodiscard]] DLManagedTensorVersioned* to_dlpack(Stream& stream, const Tensor& t, bool read_only = false);

/// Returns another library's memory as a tensor of `device`, without a copy. The allocator does not own it,
/// so that no memory table or limit counts it. The last tensor that shares it calls the deleter, on the
/// thread that releases it: operations queued by then must no longer use the memory (synchronize the stream
/// first).
///
/// The producer's queued operations must be done, or ordered before `device.compute()` by the caller: this
/// function does not wait.
/// @param allow_read_only accepts read-only memory; the caller promises not to write to it
/// @throws NotSupported for another major version of DLPack; InvalidArgument for memory of another device, a
/// dtype that DType does not have (bool is none: give it as uint8), strides other than those of a row-major
/// tensor without gaps (make it contiguous first), memory that is not aligned to its elements, and read-only
/// memory that is not allowed. `given` then still belongs to the caller, and its deleter is not called.
[[nodiscard]] Tensor from_dlpack(DLManagedTensorVersioned* given, Device& device,
                                 bool allow_read_only = false);

}  // namespace sherd
