// Ranks of a group that may still arrive at a call: all whose body runs or whose operations are queued.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <sherd/comm/watch/abort_domain.h>

namespace sherd::local {

/// Thread-safe. Counts what each rank has queued on the group's communicator, on whatever stream, so that the
/// end of its work is known without knowing its streams.
class Presence {
 public:
  /// All outlive it.
  Presence(comm::AbortDomain& domain, comm::WaitPoint& point, const std::vector<int>& world_ranks);

  /// One queued call. A call destroyed without run() was dropped by a failed stream: its rank is about to
  /// report the failure, and counts as one that may still arrive.
  class Queued {
   public:
    Queued(std::shared_ptr<Presence> presence, int rank);
    ~Queued();
    Queued(const Queued&) = delete;
    Queued& operator=(const Queued&) = delete;
    /// Marks the call as run, or as never queued.
    void run() { ran_ = true; }

   private:
    const std::shared_ptr<Presence> presence_;
    const int rank_;
    const uint64_t epoch_;
    bool ran_ = false;
  };

  /// Returns whether the rank makes no more calls. Call it with the wait point's mutex held.
  bool gone(int rank);

 private:
  uint64_t add(int rank);
  void remove(int rank, uint64_t epoch);
  /// Forgets the calls that were dropped before a recovery.
  void begin_anew();

  comm::AbortDomain& domain_;
  comm::WaitPoint& point_;
  const std::vector<int>& world_ranks_;
  std::vector<int64_t> queued_;  // by rank; these under point_'s mutex
  uint64_t epoch_ = 0;
};

}  // namespace sherd::local
