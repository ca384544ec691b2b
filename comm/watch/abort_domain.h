// Failure state of one launch: the first cause, and the wake-up of every thread that waits for a peer.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <sherd/base/error.h>

namespace sherd::comm {

/// CommError that only reports another rank's failure; the launcher prefers the cause over it.
class PeerFailure final : public CommError {
 public:
  using CommError::CommError;
};

/// Mutex and condition on which the ranks of a group wait for each other.
struct WaitPoint {
  /// Wakes all that wait, after a change that was not made under the mutex: a waiter is either before its check or
  /// asleep.
  void wake() {
    { std::lock_guard lock(mutex); }
    changed.notify_all();
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::chrono::milliseconds timeout{0};  // longest wait
};

enum class Wait { ready, aborted, timed_out };

/// First failure of a launch, shared by all its groups. Thread-safe. Lock order: a WaitPoint's mutex before
/// the domain's.
class AbortDomain {
 public:
  AbortDomain() = default;
  AbortDomain(const AbortDomain&) = delete;
  AbortDomain& operator=(const AbortDomain&) = delete;

  bool aborted() const noexcept { return aborted_.load(std::memory_order_acquire); }

  /// Returns a wait point that abort() wakes for as long as it exists.
  std::shared_ptr<WaitPoint> make_wait_point(std::chrono::milliseconds timeout);

  /// Waits until ready(), which is called under `lock` (of point.mutex), or abort, or timeout.
  template <class Ready>
  Wait wait(WaitPoint& point, std::unique_lock<std::mutex>& lock, Ready ready) const {
    return wait_until(point, lock, std::chrono::steady_clock::now() + point.timeout, ready);
  }
  /// The same; calls still_waiting(), under `lock`, once notice_after() has passed.
  template <class Ready, class StillWaiting>
  Wait wait(WaitPoint& point, std::unique_lock<std::mutex>& lock, Ready ready,
            StillWaiting still_waiting) const {
    const auto start = std::chrono::steady_clock::now();
    const Wait first = wait_until(point, lock, start + notice_after(point.timeout), ready);
    if (first != Wait::timed_out) return first;
    still_waiting();
    return wait_until(point, lock, start + point.timeout, ready);
  }
  static std::chrono::milliseconds notice_after(std::chrono::milliseconds timeout) {
    return std::min<std::chrono::milliseconds>(std::chrono::seconds(10), timeout / 10);
  }

  /// Registers a listener, called with the cause once for each failure of the launch, by the thread that has
  /// declared it and after all waiters are woken. It must not throw, and may be called for as long as the
  /// domain exists.
  void on_failure(std::function<void(const std::string& cause)> listener);

  /// Records the cause (first call only) and wakes all waiters. Takes every WaitPoint's mutex in turn.
  void abort(int failed_rank, const std::string& cause) noexcept;

  /// Fails as the holder of a WaitPoint's mutex: records `cause` (so that it comes before other ranks' later
  /// reports of the same failure), unlocks, wakes all waiters. @throws CommError(cause), or as raise() when
  /// another failure was first.
  [[noreturn]] void fail(std::unique_lock<std::mutex>& lock, int failed_rank, const std::string& where,
                         const std::string& cause);

  /// The same for a thread that holds no WaitPoint's mutex.
  [[noreturn]] void fail(int failed_rank, const std::string& where, const std::string& cause);

  /// Clears the failure once all ranks have met (Recovery): calls work again, with new numbers.
  void reset() noexcept;
  /// Returns the number of resets.
  uint64_t epoch() const noexcept { return epoch_.load(std::memory_order_acquire); }

  /// Records that the rank's body has ended and makes no more calls. Wakes all waiters.
  void leave(int world_rank) noexcept;
  bool has_left(int world_rank) const;
  bool any_left() const noexcept { return any_left_.load(std::memory_order_acquire); }

  /// Returns the rank and cause that abort() or fail() recorded first. Call when aborted().
  std::pair<int, std::string> first_failure() const;

  /// @throws PeerFailure "<where>: aborted because <first cause>". Call without the domain's mutex.
  [[noreturn]] void raise(const std::string& where) const;

 private:
  template <class Ready>
  Wait wait_until(WaitPoint& point, std::unique_lock<std::mutex>& lock,
                  std::chrono::steady_clock::time_point deadline, Ready ready) const {
    const bool woken = point.changed.wait_until(lock, deadline, [&] { return ready() || aborted(); });
    if (!woken) return Wait::timed_out;
    return ready() ? Wait::ready : Wait::aborted;
  }
  bool declare(int failed_rank, const std::string& cause) noexcept;
  void wake_all() noexcept;
  void report(const std::string& cause) noexcept;

  std::atomic<bool> aborted_{false}, any_left_{false};
  std::atomic<uint64_t> epoch_{0};
  std::mutex waking_;  // one wakes at a time; before a WaitPoint's
  mutable std::mutex mutex_;
  std::string cause_;
  int failed_rank_ = -1;
  std::set<int> left_;
  std::vector<std::function<void(const std::string&)>> listeners_;
  std::list<std::weak_ptr<WaitPoint>> points_;  // a list: waking must not need memory
};

}  // namespace sherd::comm
