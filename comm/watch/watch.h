// Watch over the ranks of a launch: the first failure, missing ranks, last calls. Private to comm/.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <sherd/comm/core/detail/call.h>
#include <sherd/comm/watch/abort_domain.h>
#include <sherd/comm/watch/flight_recorder.h>
#include <sherd/comm/watch/reports.h>

namespace sherd::comm {

/// A rank's call that waits for other ranks. The functions are called under the mutex of its wait point.
class PendingCall {
 public:
  struct Description {
    int world_rank = 0;
    std::string where;
    Purpose purpose;
    std::vector<Waiting> waiting;  // ranks that are known to wait, this one included
  };
  /// Returns whether the wait is over.
  virtual bool complete() = 0;
  /// Returns the world ranks that have not come, ascending. `gone`: only those that make no further call.
  virtual std::vector<int> missing(bool gone) = 0;
  virtual Description describe() = 0;
  /// Called before the launch fails, or when it has failed: this rank waits no longer.
  virtual void withdraw() = 0;

 protected:
  ~PendingCall() = default;
};

/// Knowledge of a process about the ranks of its launch. Thread-safe.
class Watch {
 public:
  /// `recorders`: of the ranks of this process; each writes its file when the launch fails.
  explicit Watch(std::vector<std::shared_ptr<FlightRecorder>> recorders);

  AbortDomain& domain() { return domain_; }
  const std::vector<std::shared_ptr<FlightRecorder>>& recorders() const { return recorders_; }

  /// Waits, with `lock` on point.mutex, until the call is complete. Writes a line to stderr when an entry waits alone
  /// for long (Purpose::entry()).
  /// @throws CommError, which fails the launch, after the point's timeout and once a missing rank makes no further
  /// call; PeerFailure when the launch has failed. `lock` is released then.
  void await(WaitPoint& point, std::unique_lock<std::mutex>& lock, PendingCall& call);

  /// Records a call of another process's rank.
  void received(int world_rank, const std::string& group, const Call& call);
  /// Records that a rank makes no further call, with the description of its last.
  void left(int world_rank, std::string last_call);
  /// Describes the rank's last known call, for messages: of another process's rank its report when it left, else
  /// its last received call; "" when unknown. `before`: as of FlightRecorder::last().
  std::string last_call(int world_rank, const char* before = "ago") const;

 private:
  struct Received {
    std::string group;
    Call call;
    std::chrono::steady_clock::time_point time;
  };
  std::string last_calls(const std::vector<int>& world_ranks) const;

  const std::vector<std::shared_ptr<FlightRecorder>> recorders_;
  AbortDomain domain_;
  mutable std::mutex mutex_;
  std::map<int, Received> received_;        // by world rank; under mutex_, as the next
  std::map<int, std::string> final_calls_;  // of ranks that have left
};

}  // namespace sherd::comm
