// CUDA's runtime with errors as exceptions. Private to the CUDA backends (CUDA kernels, comm/nccl).
#pragma once

#include <cuda_runtime_api.h>

#include <sherd/base/error.h>
#include <sherd/kernels/device/stream.h>

namespace sherd::cuda {

/// @throws OutOfMemory or CudaError: "<what>: <name of the error>: <its text>".
void check(cudaError_t result, const char* what);

/// See CudaQueue::dynamic_shared_limit.
int64_t dynamic_shared_limit(const ExecutionContext& context, const char* what, const void* kernel);

inline cudaStream_t stream_of(const ExecutionContext& context) {
  return static_cast<cudaStream_t>(context.native);
}

}  // namespace sherd::cuda
