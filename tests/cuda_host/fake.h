// Test interface of the imitated libraries (cudart, cuBLASLt, cuSOLVER; of cuDNN its attention alone). They keep their real C
// interfaces and do at once, on the calling thread, what they would queue on a stream.
//
// Environment: SHERD_HOST_CUDA_DEVICES, the number of devices (8 when unset; 0: no driver).
// SHERD_HOST_CUDA_CAPABILITY: theirs, 80 when unset; 90 lets the kernel for that chip alone be asked for.
// SHERD_HOST_CUDA_MULTIPROCESSORS: theirs, 132 when unset.
// SHERD_HOST_CUDNN_VERSION: cuDNN's, as 91900 for 9.19.0; unset: it is not installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace cuda_host {

/// Each device pretends to have so much memory.
inline constexpr int64_t kDeviceBytes = int64_t{4} << 30;

/// Objects that exist in the whole process: blocks of memory (device and pinned), streams, events, handles of
/// the libraries, and their descriptors.
struct Live {
  int64_t device_blocks = 0, device_bytes = 0, host_blocks = 0, streams = 0, events = 0, handles = 0,
          descriptors = 0;
  bool operator==(const Live&) const = default;
};
Live live();

/// Returns the number of calls of each function since the start or reset_calls(). Process-wide.
std::map<std::string, int64_t> calls();
void reset_calls();

/// The n-th next call (1 = the next) of `function`, e.g. "cudaMalloc", does nothing but return `code` (a
/// cudaError_t, cublasStatus_t or cusolverStatus_t). Process-wide, once.
void fail_call(const std::string& function, int64_t n, int code);
/// cusolverDnXgesvd with code kNoConvergence + i runs and succeeds, but its info is i.
inline constexpr int kNoConvergence = 1000;
/// Takes back what has not happened yet.
void fail_nothing();

/// For the imitated libraries: counts a call; what it is to fail with, or 0.
int enter(const char* function);
/// For the emulated launch: the driver's error for a kernel whose blocks would have more shared memory, static and dynamic, than
/// is allowed (48 KiB, or what cudaFuncSetAttribute has set); or 0.
int check_shared_memory(const void* kernel, size_t dynamic_bytes);
/// For the imitated libraries: adds to a count of live().
void count_live(int64_t Live::*what, int64_t by);

}  // namespace cuda_host
