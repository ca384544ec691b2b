// Watchdog thread of a process: exchanges the first failure of a launch with the other processes through their store.
// Private to comm/.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include <sherd/comm/bootstrap/store.h>
#include <sherd/comm/watch/abort_domain.h>

namespace sherd::comm {

/// Declares another process's announced failure in the domain. Returns whether the launch has failed.
/// @throws CommError when the store does not answer.
bool adopt_failure(AbortDomain& domain, Store& store);

/// Thread that declares announced failures of other processes in the domain, and announces this process's.
class Watchdog {
 public:
  /// Functions of a backend; all run on the watchdog's thread.
  struct Duties {
    /// Called at every poll while the launch has not failed; its exceptions fail the launch.
    std::function<void()> check;
    /// Called once after a failure, before it is announced.
    std::function<void()> fail = {};
    /// Called at every poll after a failure.
    std::function<void()> abort = {};
  };

  /// `world_rank`: of this process, for errors of its own. The domain outlives this.
  Watchdog(AbortDomain& domain, std::shared_ptr<Store> store, int world_rank, std::chrono::milliseconds poll,
           Duties duties);
  /// Polls once more, and ends the thread.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void run();
  void check();
  void handle_failure();

  AbortDomain& domain_;
  const std::shared_ptr<Store> store_;
  const int world_rank_;
  const Duties duties_;
  const std::shared_ptr<WaitPoint> point_;  // its timeout is the interval between polls
  bool stop_ = false;                       // under point_'s mutex
  bool announced_ = false;                  // used by the thread alone
  std::thread thread_;                      // last: it uses all of these
};

}  // namespace sherd::comm
