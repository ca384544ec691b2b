// Tensors of libtorch on memory that libtorch does not own.
#pragma once

#include <ATen/core/Tensor.h>

#include <sherd/kernels/device/tensor.h>

namespace sherd::torch::detail {

/// Returns a view of sherd's memory as a tensor of libtorch on device `place`, where that memory is. The
/// tensor does not own it.
at::Tensor view_of(const Tensor& memory, at::IntArrayRef sizes, at::ScalarType type, at::Device place);
/// Returns a tensor of these sizes on device `place` without memory.
at::Tensor without_memory(at::IntArrayRef sizes, at::ScalarType type, at::Device place);
/// Returns the values as dense host memory: the tensor itself if it is that, or a copy. Waits for the device
/// that has them.
at::Tensor on_host(const at::Tensor& tensor);
/// Gives `tensor` device, dtype and memory of `other`, which has the same sizes. It keeps its identity and
/// its autograd state. Tensor::set_data() does this on one device, but refuses to leave the meta device;
/// between a CPU and a GPU it need not be tried.
void become(const at::Tensor& tensor, const at::Tensor& other);

/// Makes the C library keep freed memory for the process's next allocations. By default it returns what a backward frees
/// to the system, which clears every page for the next forward. Blocks above 32 MiB are still returned. No effect when
/// the environment sets MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_, MALLOC_TOP_PAD_ or malloc's tunables (GLIBC_TUNABLES), or
/// with another allocator.
void keep_freed_memory();

/// Takes the memory of a tensor away: a later access to the storage throws an error that includes `why`.
void take_memory_away(c10::StorageImpl& storage, const char* why);
/// Ends the error. set_data_ptr_noswap() must follow.
void allow_reading(c10::StorageImpl& storage);

}  // namespace sherd::torch::detail
