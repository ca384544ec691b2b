// Heartbeats between processes: detection of a suspended or unreachable peer during calls without a timeout,
// such as saves that take hours. Private to comm/mpi.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <sherd/comm/bootstrap/store.h>

namespace sherd::mpi {

/// Publishes this process's heartbeat in the store and checks its successor's: two small requests a second,
/// for any number of processes. For one thread.
class Pulse {
 public:
  using Clock = std::chrono::steady_clock;

  /// `prefix` is the same on all processes. A process without a heartbeat for `limit` is reported.
  Pulse(std::shared_ptr<Store> store, std::string prefix, int process, int processes,
        std::chrono::milliseconds limit);
  /// The rank whose heartbeat this one checks; its own when it is alone.
  int neighbour() const { return neighbour_; }
  /// Call it more often than once a second; most calls do nothing. Returns the time since the neighbour's
  /// last heartbeat, once that exceeds the limit. Time in which this process itself was suspended does not
  /// count: the neighbour may have been suspended as well.
  /// @throws CommError when the store does not answer.
  std::optional<std::chrono::milliseconds> look(Clock::time_point now);

 private:
  const std::shared_ptr<Store> store_;
  const std::string prefix_;
  const int process_, neighbour_;
  const Clock::duration limit_, interval_;
  std::optional<Clock::time_point> last_;
  int64_t beats_ = 0;
  std::string heard_;
  Clock::duration silence_{};
};

}  // namespace sherd::mpi
