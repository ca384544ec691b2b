// Heartbeats between processes: detection of a suspended or unreachable peer during calls without a timeout,
// such as saves that take hours. Private to comm/.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <sherd/comm/bootstrap/store.h>

namespace sherd::comm {

/// Publishes this process's heartbeat in the store and checks its successor's: two small requests a second,
/// for any number of processes. For one thread.
class Heartbeat {
 public:
  using Clock = std::chrono::steady_clock;

  /// `prefix` is the same on all processes. A process without a heartbeat for `limit` is reported.
  Heartbeat(std::shared_ptr<Store> store, std::string prefix, int process, int processes,
            std::chrono::milliseconds limit);
  /// The process whose heartbeat this one checks; its own index when it is alone.
  int successor() const { return successor_; }
  /// Call it more often than once a second; most calls do nothing. Returns the time since the successor's
  /// last heartbeat, once that exceeds the limit. Time in which this process itself was suspended does not
  /// count: the successor may have been suspended as well.
  /// @throws CommError when the store does not answer.
  std::optional<std::chrono::milliseconds> check(Clock::time_point now);

 private:
  const std::shared_ptr<Store> store_;
  const std::string prefix_;
  const int process_, successor_;
  const Clock::duration limit_, interval_;
  std::optional<Clock::time_point> last_;
  int64_t beats_ = 0;
  std::string received_;
  Clock::duration silence_{};
};

}  // namespace sherd::comm
