// Counts of collectives, shared by a rank's world communicator and everything split from it. Private to
// comm/.
#pragma once

#include <mutex>

#include <sherd/comm/communicator.h>

namespace sherd {

/// Thread-safe.
class CommCounters {
 public:
  /// One call of `op` that receives `bytes` from other ranks.
  void add(const char* op, int64_t bytes) {
    std::lock_guard lock(mutex_);
    CommCount& c = counts_[op];
    ++c.calls;
    c.bytes += bytes;
  }
  CommCounts snapshot() const {
    std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  mutable std::mutex mutex_;
  CommCounts counts_;
};

}  // namespace sherd
