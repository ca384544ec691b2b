// Stragglers of a late call. Private to comm/nccl.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <sherd/comm/bootstrap/store.h>

namespace sherd::nccl {

/// Progress of a rank on a communicator.
struct Progress {
  int64_t calls = 0;  // collectives that it has begun to issue
  std::string last;   // the last of them, or ""
};

/// The first rank that finds a call late asks, by a key of the store that every rank's watchdog polls; each
/// answers once, for the communicator in question. Thread-safe.
class RollCall {
 public:
  using Find = std::function<Progress(const std::string& communicator)>;

  /// `find` reports this rank's calls. The store outlives this.
  RollCall(Store& store, const std::string& world, int world_rank, Find find);

  /// Answers a pending request. @throws as the store does.
  void answer();
  /// Finds the ranks that call number `calls` (from 1) of a communicator waits for: waits a little for the
  /// others' answers, or until `stop`. Returns a clause that names ranks that have called less or do not
  /// answer; "" when unknown.
  std::string ask(const std::string& communicator, const std::vector<int>& world_ranks, int64_t calls,
                  const std::function<bool()>& stop);

 private:
  std::string key_of(const std::string& communicator, int world_rank) const;
  void answer_for(const std::string& communicator);

  Store& store_;
  const std::string question_;
  const int world_rank_;
  const Find find_;
  std::atomic<bool> answered_{false};
};

}  // namespace sherd::nccl
