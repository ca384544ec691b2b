// Counters of collectives, the digest of their purposes and their flight records, shared by a rank's world
// communicator and everything split from it. Private to comm/.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include <sherd/comm/core/communicator.h>
#include <sherd/comm/watch/flight_recorder.h>
#include <sherd/kernels/random/random.h>

namespace sherd::comm {

/// Counters and digest of a rank's calls. Thread-safe.
class CommCounters {
 public:
  /// `recorder`: the rank's, shared with the counters of side channels.
  explicit CommCounters(std::shared_ptr<FlightRecorder> recorder) : recorder_(std::move(recorder)) {}

  const std::shared_ptr<FlightRecorder>& recorder() const { return recorder_; }
  /// Counts one call of `op` that receives `bytes` from other ranks.
  void add(const char* op, int64_t bytes) {
    std::lock_guard lock(mutex_);
    CommCount& c = counts_[op];
    ++c.calls;
    c.bytes += bytes;
  }
  /// Adds a call with a purpose to the digest.
  void mix(const char* op, int64_t elements, uint64_t purpose) {
    std::lock_guard lock(mutex_);
    digest_ = hash64(hash64(digest_ ^ purpose, op) ^ static_cast<uint64_t>(elements), {});
  }
  uint64_t digest() const {
    std::lock_guard lock(mutex_);
    return digest_;
  }
  void reset_digest() {
    std::lock_guard lock(mutex_);
    digest_ = 0;
  }
  CommCounts snapshot() const {
    std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  const std::shared_ptr<FlightRecorder> recorder_;
  mutable std::mutex mutex_;
  CommCounts counts_;
  uint64_t digest_ = 0;
};

}  // namespace sherd::comm
