// Memory that NCCL takes for communicators. Private to comm/nccl.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include <sherd/kernels/device/device.h>

namespace sherd::nccl {

/// Counts the device memory that NCCL takes as "NCCL" in the device's table of memory and under its limit. NCCL does not say
/// how much it takes: it is what the device loses during calls beside what the device's allocator takes. Another process's
/// memory may be counted where it shares the GPU. Thread-safe. Of calls that overlap the sum is exact; each of them may have a
/// share of the others.
class LibraryMemory {
 public:
  explicit LibraryMemory(Device& device) : device_(device) {}

  /// Returns an object that counts what NCCL has taken during `call` while it exists; null: nothing.
  /// @throws what `call` throws; OutOfMemory when the limit is passed.
  [[nodiscard]] std::shared_ptr<void> count(const std::function<void()>& call);

 private:
  int64_t beside_the_allocator() const;

  Device& device_;
  std::mutex mutex_;
  int running_ = 0;     // calls
  int64_t before_ = 0;  // beside the allocator, when the first of them began
};

}  // namespace sherd::nccl
