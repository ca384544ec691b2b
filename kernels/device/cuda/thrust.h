// Thrust's algorithms on a stream. Private to CUDA kernels.
//
// Distinguishes nvcc from a host compiler, as launch.h does. Without nvcc Thrust's C++ backend runs the
// algorithms, on the imitated streams of tests/cuda_host.
#pragma once

#include <cstddef>
#include <string>

#include <sherd/kernels/device/stream.h>

#include "runtime.h"

#ifdef __CUDACC__
#include <thrust/system/cuda/execution_policy.h>
#include <thrust/system_error.h>
#else
#include <cuda_host/fake.h>
#include <cuda_host/late.h>
#include <thrust/system/cpp/execution_policy.h>
#endif

namespace sherd::cuda {

/// Allocator that refuses. By itself Thrust would call cudaMalloc, which waits for the GPU; and memory of the
/// stream's scratch needs a size before the call, which CUB reports and Thrust does not.
struct NoThrustMemory {
  using value_type = char;
  char* allocate(std::ptrdiff_t bytes) {
    throw CudaError("Thrust requests " + std::to_string(bytes) +
                    " bytes of temporary memory; use CUB, whose memory can be scratch");
  }
  void deallocate(char*, size_t) {}
};

/// Calls algorithms(policy of Thrust), which queues them on the context's stream. For algorithms without temporary memory and
/// without a result on the host: no sorts, scans, reductions, copies of what a predicate selects.
/// @throws CudaError naming `what`.
template <class F>
void run_thrust(ExecutionContext& context, const char* what, const F& algorithms) {
#ifdef __CUDACC__
  try {
    NoThrustMemory none;
    algorithms(thrust::cuda::par_nosync(none).on(stream_of(context)));
  } catch (const thrust::system_error& e) {
    throw CudaError(std::string(what) + ": " + e.what());
  }
#else
  check(static_cast<cudaError_t>(cuda_host::enter("thrust")), what);
  cuda_host::issue_on(stream_of(context), [algorithms] {
    NoThrustMemory none;
    algorithms(thrust::cpp::par(none));
  });
#endif
}

}  // namespace sherd::cuda
