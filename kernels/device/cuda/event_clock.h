// Events with the time at which the device reached them, on the host's clock. Private to CUDA kernels.
#pragma once

#include <memory>
#include <mutex>

#include <sherd/kernels/device/stream.h>

#include "runtime.h"

namespace sherd::cuda {

/// A device knows only the time between two of its events, and its clock drifts against the host's. So times
/// are counted from a base event, the host's time of which is known to a few microseconds and which is
/// replaced every second. Any thread.
class EventClock {
 public:
  explicit EventClock(int ordinal);
  ~EventClock();
  EventClock(const EventClock&) = delete;

  /// The present point of `stream`, which is this device's. Events go back when their stamps are dropped,
  /// also after the clock.
  std::shared_ptr<NativeStamp> stamp(cudaStream_t stream);

 private:
  class Pool;
  struct Base;
  static constexpr double kBaseAge = 1e6;  // microseconds
  std::shared_ptr<const Base> base();

  const int ordinal_;
  const std::shared_ptr<Pool> pool_;
  std::mutex mutex_;
  cudaStream_t stream_ = nullptr;  // of the base events, made on first use
  std::shared_ptr<const Base> base_;
};

}  // namespace sherd::cuda
