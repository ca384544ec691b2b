// Shared state of the parts of the imitated runtime: fake_device.cpp, fake_memory.cpp, fake_streams.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "fake.h"
#include "late.h"

struct CUstream_st {
  int device, priority;
  unsigned flags;
  cuda_host::StreamId id;
};

struct CUevent_st {
  int device;
  unsigned flags;
  std::shared_ptr<const cuda_host::Mark> mark;  // null before it is recorded
  bool captured = false;
};

namespace cuda_host::runtime {

struct Block {
  size_t bytes;
  cudaMemoryType type;
  int device;
  bool registered;  // cudaHostRegister: not ours to free
};

struct Machine {
  std::mutex mutex;
  std::map<uintptr_t, Block> blocks;
  std::map<int, int64_t> used;  // bytes of each device
  std::set<CUstream_st*> streams;
  std::set<CUevent_st*> events;
  std::set<std::pair<int, int>> peers;
  std::map<std::pair<int, const void*>, int> dynamic_shared;  // bytes allowed, by device and kernel
};

Machine& machine();
int device_count();
/// This thread's.
int& current_device();
/// Stores an error for cudaGetLastError.
cudaError_t report(cudaError_t error);

/// Streams and events must be alive; null is the default stream.
bool known(cudaStream_t stream);
bool known(cudaEvent_t event);
StreamId id_of(cudaStream_t stream);
/// Returns whether the stream is captured; the host must not use it then.
bool captured(cudaStream_t stream);

/// Returns when all work that the device's streams have now is done. Not under the mutex.
void run_dry(int device);

inline constexpr int kHighestPriority = -5;

}  // namespace cuda_host::runtime

// A function's first line: counts the call, fails if a test says so, or if the device is missing.
#define ENTER(function)                                                                            \
  if (const int code = cuda_host::enter(#function)) return report(static_cast<cudaError_t>(code)); \
  if (device_count() == 0) return report(cudaErrorNoDevice)
#define REQUIRE(condition, error) \
  if (!(condition)) return report(error)
