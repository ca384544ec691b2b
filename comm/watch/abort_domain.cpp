#include <sherd/comm/watch/abort_domain.h>

#include <fmt/format.h>

namespace sherd::comm {

std::shared_ptr<WaitPoint> AbortDomain::make_wait_point(std::chrono::milliseconds timeout) {
  auto point = std::make_shared<WaitPoint>();
  point->timeout = timeout;
  std::lock_guard lock(mutex_);
  // Groups come and go with splits; a launch must not collect their points.
  std::erase_if(points_, [](const auto& p) { return p.expired(); });
  points_.push_back(point);
  return point;
}

// Records the first failure; later ones change nothing. The caller must wake the waiters and report it.
bool AbortDomain::declare(int failed_rank, const std::string& cause) noexcept {
  // mutex_ guards cause_ and failed_rank_; threads that poll aborted() take no lock.
  std::lock_guard lock(mutex_);
  if (aborted()) return false;
  try {
    cause_ = cause;
  } catch (const std::bad_alloc&) {
    cause_.clear();  // the abort itself must not fail for want of memory
  }
  failed_rank_ = failed_rank;
  // Released last: a thread that reads aborted() as true also reads cause_ and failed_rank_.
  aborted_.store(true, std::memory_order_release);
  return true;
}

// Wakes every waiter of the domain. Points are visited without mutex_, since a waiter holds its point's
// mutex while it reads the domain's state: holding both here could deadlock.
void AbortDomain::wake_all() noexcept {
  // One waker at a time, so that a second one does not find the list empty and return too early.
  std::lock_guard waking(waking_);
  std::list<std::weak_ptr<WaitPoint>> points;
  {
    std::lock_guard lock(mutex_);
    points.swap(points_);  // those made meanwhile see what has happened before they wait
  }
  // A point that is destroyed meanwhile has no waiter: the waiter's group holds it.
  for (const auto& weak : points)
    if (const auto point = weak.lock()) point->wake();
  // The points made meanwhile come first; the swapped ones are appended.
  std::lock_guard lock(mutex_);
  points_.splice(points_.end(), points);
}

void AbortDomain::on_failure(std::function<void(const std::string&)> listener) {
  std::lock_guard lock(mutex_);
  listeners_.push_back(std::move(listener));
}

// Calls the listeners on the thread that declared the failure. They run without mutex_: they write files and
// may ask this domain for its first failure.
void AbortDomain::report(const std::string& cause) noexcept {
  try {
    std::vector<std::function<void(const std::string&)>> listeners;
    {
      std::lock_guard lock(mutex_);
      listeners = listeners_;
    }
    for (const auto& listener : listeners) listener(cause);
  } catch (const std::bad_alloc&) {  // the failure itself is recorded
  }
}

// Clears the failure. Recovery calls this when all ranks have met.
void AbortDomain::reset() noexcept {
  std::lock_guard lock(mutex_);
  cause_.clear();
  failed_rank_ = -1;
  // The epoch marks records and group names of different attempts as different.
  epoch_.fetch_add(1, std::memory_order_release);
  // Last: a thread that reads false also reads the new epoch.
  aborted_.store(false, std::memory_order_release);
}

void AbortDomain::leave(int world_rank) noexcept {
  try {
    std::lock_guard lock(mutex_);
    left_.insert(world_rank);
    any_left_.store(true, std::memory_order_release);
  } catch (const std::bad_alloc&) {
    return;  // the others wait for their timeout
  }
  // Waiters check whether the rank that left was to join their call; such a call fails at once.
  wake_all();
}

// The atomic flag keeps the lock out of the common case: all ranks still make calls.
bool AbortDomain::has_left(int world_rank) const {
  if (!any_left()) return false;
  std::lock_guard lock(mutex_);
  return left_.contains(world_rank);
}

void AbortDomain::abort(int failed_rank, const std::string& cause) noexcept {
  // Waiters wake before the listeners run: writing a file may take long.
  const bool first = declare(failed_rank, cause);
  wake_all();
  if (first) report(cause);
}

// The rank that declares the failure throws its own cause. A rank that comes second throws the first failure
// instead, as a PeerFailure, so that all ranks name one cause.
void AbortDomain::fail(std::unique_lock<std::mutex>& lock, int failed_rank, const std::string& where,
                       const std::string& cause) {
  // Under the point's mutex: another rank of the point can only report the failure after this one.
  const bool first = declare(failed_rank, cause);
  if (lock.owns_lock()) lock.unlock();
  wake_all();
  if (!first) raise(where);
  report(cause);
  throw CommError(cause, failed_rank);
}

void AbortDomain::fail(int failed_rank, const std::string& where, const std::string& cause) {
  std::unique_lock<std::mutex> none;
  fail(none, failed_rank, where, cause);
}

std::pair<int, std::string> AbortDomain::first_failure() const {
  std::lock_guard lock(mutex_);
  return {failed_rank_, cause_};
}

void AbortDomain::raise(const std::string& where) const {
  std::lock_guard lock(mutex_);
  // The type lets the launcher prefer the rank that failed over those that only report it.
  throw PeerFailure(fmt::format("{}: aborted because {}", where, cause_), failed_rank_);
}

}  // namespace sherd::comm
