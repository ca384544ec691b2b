// One rank's part of a launch: its communicators, their pending operations, and the watchdog. Private to
// comm/nccl.
#pragma once

#include <atomic>
#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <sherd/comm/bootstrap/store.h>
#include <sherd/comm/nccl/detail/api.h>
#include <sherd/comm/nccl/detail/issue_order.h>
#include <sherd/comm/nccl/detail/library_memory.h>
#include <sherd/comm/nccl/detail/watched.h>
#include <sherd/comm/nccl/nccl_options.h>
#include <sherd/comm/watch/progress.h>
#include <sherd/comm/watch/watch.h>
#include <sherd/comm/watch/watchdog.h>
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
  Session(const NcclApi& api, Device& device, std::shared_ptr<Store> store,
          std::shared_ptr<comm::FlightRecorder> recorder, const NcclOptions& options);
  /// Destroys all NCCL communicators, in the order they were made in.
  ~Session();

  const NcclApi& api() const { return api_; }
  Device& device() const { return device_; }
  Store& store() const { return *store_; }
  int world_rank() const { return world_rank_; }
  const NcclOptions& options() const { return options_; }
  comm::AbortDomain& domain() { return watch_.domain(); }
  comm::Progress& progress() { return progress_; }
  LibraryMemory& memory() { return memory_; }
  IssueOrder& order() { return *order_; }

  using Issuing = std::unique_lock<std::recursive_mutex>;
  /// One operation is issued at a time, and none beside a call of the device's memory.
  Issuing issue_alone() { return Issuing(issuing_); }
  /// The same, when none of the issued operations runs any more, or the launch has failed: for calls of the driver that wait for
  /// what runs on the device. Operations run in one order on all ranks, so that the others issue what this waits for.
  Issuing issue_in_quiet() noexcept;

  /// Takes a communicator; the watchdog checks it from now on.
  void add(std::unique_ptr<Watched> communicator);

  /// @throws PeerFailure when the launch has failed.
  void check(const std::string& where);
  /// @throws CommError(cause), or as check() when another failure was first.
  [[noreturn]] void fail(const std::string& where, const std::string& cause, int failed_rank = -1);
  bool failed() noexcept { return domain().aborted(); }

  /// Announces that this rank makes no more calls; sent to the others once what it has queued is issued.
  void leave() noexcept { leaving_.store(true); }

  /// Waits briefly for the store's notice of a failure. The end of a peer appears as NCCL's network error
  /// and, about as soon, as that notice, which names the rank. @throws PeerFailure when it has come.
  void await_notice(const std::string& where);
  /// Same as Progress::find_stragglers(), until the launch fails.
  std::string find_stragglers(const std::string& communicator, const std::vector<int>& world_ranks,
                              int64_t number);

  /// Puts `value` under prefix/index and waits for those of all members, which are named by world rank.
  /// @throws CommError naming the members that did not come; as check().
  std::vector<std::string> collect(const std::string& prefix, size_t index, const std::string& value,
                                   const std::vector<int>& members, const std::string& where,
                                   const Deadline& deadline);

 private:
  /// The watchdog's turn: announces this rank's departure once it has left, reads those of others, and polls
  /// the communicators.
  void poll();
  void poll_communicators();
  void announce_departure();
  /// Fails the device with the first failure.
  void fail_device();
  /// Aborts every communicator that is in use.
  void abort_communicators();
  /// Removes NCCL's registrations of a block that returns to the system.
  void forget(const void* block, int64_t bytes) noexcept;

  const NcclApi& api_;
  Device& device_;
  const std::shared_ptr<Store> store_;
  const int world_rank_;
  const NcclOptions options_;
  comm::Watch watch_;
  comm::Progress progress_;
  LibraryMemory memory_{device_};
  const std::shared_ptr<IssueOrder> order_ = std::make_shared<IssueOrder>();  // turns may outlive the session
  std::recursive_mutex issuing_;  // before mutex_, and the allocators'
  std::mutex mutex_;
  std::list<std::unique_ptr<Watched>> communicators_;
  std::atomic<bool> leaving_{false};
  bool departure_announced_ = false;
  std::optional<std::chrono::steady_clock::time_point> network_error_;  // when the watchdog first saw one
  std::vector<std::shared_ptr<void>> listening_;  // to the device's allocators, at their gates
  std::optional<comm::Watchdog> watchdog_;
};

}  // namespace sherd::nccl
