// One rank's part of a launch: its communicators, their pending operations, and the watchdog. Private to
// comm/nccl.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <sherd/comm/bootstrap/store.h>
#include <sherd/comm/watch/abort_domain.h>
#include <sherd/comm/nccl/detail/api.h>
#include <sherd/comm/nccl/detail/roll_call.h>
#include <sherd/comm/nccl/detail/watched.h>
#include <sherd/comm/nccl/nccl_options.h>
#include <sherd/kernels/device/device.h>

namespace sherd::nccl {

/// The time at which a call is aborted.
struct Deadline {
  explicit Deadline(std::chrono::milliseconds t) : timeout(t), time(std::chrono::steady_clock::now() + t) {}
  bool passed() const { return std::chrono::steady_clock::now() > time; }
  std::chrono::milliseconds timeout;
  std::chrono::steady_clock::time_point time;
};

/// Thread-safe. Exists as long as a communicator or a queued operation of its world.
class Session {
 public:
  /// The device outlives the session.
  Session(const NcclApi& api, Device& device, std::shared_ptr<Store> store, int world_rank,
          const NcclOptions& options);
  /// Destroys all NCCL communicators, in the order they were made in.
  ~Session();

  const NcclApi& api() const { return api_; }
  Device& device() const { return device_; }
  Store& store() const { return *store_; }
  int world_rank() const { return world_rank_; }
  const NcclOptions& options() const { return options_; }

  /// Takes a communicator; the watchdog checks it from now on.
  void watch(std::unique_ptr<Watched> communicator);

  /// @throws PeerFailure when the launch has failed.
  void check(const std::string& where) const;
  /// @throws CommError(cause), or as check() when another failure was first.
  [[noreturn]] void fail(const std::string& where, const std::string& cause, int failed_rank = -1);
  void abort(int failed_rank, const std::string& cause) noexcept { domain_.abort(failed_rank, cause); }
  bool failed() const noexcept { return domain_.aborted(); }
  /// As AbortDomain::on_failure().
  void on_failure(std::function<void(const std::string& cause)> tell) { domain_.on_failure(std::move(tell)); }

  /// Announces that this rank makes no more calls; sent to the others once what it has queued is issued.
  void leave() noexcept { leaving_.store(true); }
  /// Returns those of `ranks` that have left the world without having begun number `number` (from 1) of what
  /// they count under `key`, see Watched::counts(). Number 0: those that have left.
  std::vector<int> left_before(const std::vector<int>& ranks, const std::string& key, int64_t number) const;

  /// Waits briefly for the store's notice of a failure. The end of a peer appears as NCCL's network error
  /// and, about as soon, as that notice, which names the rank. @throws PeerFailure when it has come.
  void await_notice(const std::string& where) const;
  /// Returns a clause that names the ranks that call number `calls` of a communicator waits for, or "".
  std::string who_is_behind(const std::string& communicator, const std::vector<int>& world_ranks,
                            int64_t calls);

  /// Puts `value` under prefix/index and waits for those of all members, which are named by world rank.
  /// @throws CommError naming the members that did not come; as check().
  std::vector<std::string> collect(const std::string& prefix, size_t index, const std::string& value,
                                   const std::vector<int>& members, const std::string& where,
                                   const Deadline& deadline);

 private:
  /// The watchdog's thread.
  void run_watchdog();
  /// One turn of it: polls for failures of this rank and of others.
  void poll_peers();
  /// Records another rank's announced failure as this rank's; false when neither has failed.
  bool adopt_peer_failure();
  void poll_communicators();
  /// Announces this rank's departure, once it has left, and reads those of others.
  void poll_departures();
  void announce_departure();
  Progress progress_of(const std::string& communicator);
  /// Removes NCCL's registrations of a block that returns to the system.
  void forget(const void* block, int64_t bytes) noexcept;
  /// Aborts every communicator that is in use; the first call fails the device and announces the failure
  /// before.
  void abort_all();

  const NcclApi& api_;
  Device& device_;
  const std::shared_ptr<Store> store_;
  const int world_rank_;
  const NcclOptions options_;
  comm::AbortDomain domain_;
  const std::shared_ptr<comm::WaitPoint> point_;  // wakes the watchdog
  bool stop_ = false;                             // under point_'s mutex
  std::mutex mutex_;
  std::list<std::unique_ptr<Watched>> communicators_;
  RollCall roll_call_;
  std::atomic<bool> leaving_{false};
  bool departure_announced_ = false, failure_announced_ = false;  // of the watchdog alone, as the next
  int64_t departures_seen_ = 0;
  mutable std::mutex departures_mutex_;
  std::map<int, std::map<std::string, int64_t>> departures_;            // counts at departure, by world rank
  std::optional<std::chrono::steady_clock::time_point> network_error_;  // when the watchdog first saw one
  int64_t turns_ = 0;                                                   // of the watchdog
  std::vector<std::shared_ptr<void>> listening_;                        // to the device's allocators
  std::thread watchdog_;
};

}  // namespace sherd::nccl
