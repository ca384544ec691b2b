// Memory that NCCL takes for a communicator. Private to comm/nccl.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <sherd/kernels/device/device.h>

namespace sherd::nccl {

/// Counts the device memory that NCCL takes, as "NCCL" in the device's table of memory and under its limit, until this
/// object is destroyed. NCCL does not say how much it takes: it is what the device loses during a call beside what the
/// device's allocator takes. Another process's memory may be counted where it shares the GPU. Counting may wait for the
/// compute stream, as any allocation: by the rank's thread alone, and not for what NCCL takes at a communicator's first
/// call, which a stream's worker makes.
class LibraryMemory {
 public:
  explicit LibraryMemory(Device& device) : device_(device) {}

  /// @throws what `call` throws; OutOfMemory when the limit is passed.
  void count(const std::function<void()>& call);

 private:
  int64_t beside_the_allocator() const;

  Device& device_;
  std::vector<std::shared_ptr<void>> counted_;
};

}  // namespace sherd::nccl
