// Waits of the driver that the streams of a process share, and rules of NCCL for several communicators, imitated: what
// hangs on a machine with several GPUs hangs here, too. Streams run late then (late.h).
//
//   memory calls    cudaMalloc, cudaFree, cudaHostAlloc, cudaFreeHost, the first launch of a kernel and the first use of a
//                   communicator or of a pair of its ranks hold the device, and wait until no collective runs on the other
//                   GPUs of the process that NCCL connects with it. Launches on the device wait for such a call.
//   launches        A stream takes kMostLaunches; the next one waits for room, and all other launches of the process wait
//                   for it.
//   communicators   Collectives of several communicators of one device from several threads at once, or in orders that
//                   differ between ranks, end the process.
//
// Environment: SHERD_HOST_CUDA_STRICT, the seconds after which a wait is a hang: the process ends with the names of who waits
// and of what is waited for. Unset or empty: none of this. SHERD_HOST_CUDA_COUNT: at its end the process says how many memory
// calls there were while a collective ran on one of its GPUs, if any.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "late.h"

namespace cuda_host::strict {

inline constexpr size_t kMostLaunches = 1024;  // of a stream, not done yet

bool on();
/// Ends the process with a message.
[[noreturn]] void stop(const std::string& why);

/// A call that takes or returns memory of the device, from its beginning to its end.
class MemoryCall {
 public:
  MemoryCall(int device, const std::string& what);

 private:
  std::unique_lock<std::timed_mutex> held_;
};
/// For a launch of the kernel: a MemoryCall if it is the first on that device.
void load_kernel(int device, const void* kernel);

/// A launch, from before its work is queued until after.
class Launch {
 public:
  Launch(int device, StreamId stream);

 private:
  std::unique_lock<std::timed_mutex> device_, process_;
};

/// The devices are connected by NCCL from now on.
void connect(int device);
/// A collective begins to run on the device, which its peers must join; it ends.
void began(int device, const std::string& what);
void ended(int device, const std::string& what);

/// A call of NCCL that launches. The order is compared of those with a `clique`, which names the communicator; `members` are the
/// devices of its ranks.
class Call {
 public:
  Call(int device, const std::string& what, const void* clique = nullptr,
       const std::vector<int>& members = {});
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call();

 private:
  const int device_;
};

}  // namespace cuda_host::strict
