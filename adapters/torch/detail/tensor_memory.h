// libtorch tensors and memory that is not libtorch's.
#pragma once

#include <ATen/core/Tensor.h>

#include <sherd/kernels/device/tensor.h>

namespace sherd::torch::detail {

/// Memory of sherd's as a tensor of libtorch's on device `place`, where that memory lies; the tensor does not own it.
at::Tensor view_of(const Tensor& memory, at::IntArrayRef sizes, at::ScalarType type, at::Device place);
/// A tensor of these sizes on device `place` without memory.
at::Tensor without_memory(at::IntArrayRef sizes, at::ScalarType type, at::Device place);
/// The values as dense memory of the host: the tensor itself, where it is that. Waits for a device that has them.
at::Tensor on_host(const at::Tensor& tensor);
/// Gives `tensor` device, dtype and memory of `other`, which has the same sizes; it keeps its identity, and what
/// autograd knows of it. Tensor::set_data(), which does so on one device, refuses to leave the meta device (and need not be asked between a CPU and a GPU).
void become(const at::Tensor& tensor, const at::Tensor& other);

/// Makes the C library keep freed memory for the process's next allocations. By default it returns what a backward frees
/// to the system, which clears every page for the next forward. Blocks above 32 MiB are still returned. No effect when
/// the environment sets MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_, MALLOC_TOP_PAD_ or malloc's tunables (GLIBC_TUNABLES), or
/// with another allocator.
void keep_freed_memory();

/// Takes the memory of a tensor away: a later access to the storage throws an error that says `why`.
void take_memory_away(c10::StorageImpl& storage, const char* why);
/// Nothing is said any more from the next set_data_ptr_noswap() on, which has to follow.
void allow_reading(c10::StorageImpl& storage);

}  // namespace sherd::torch::detail
