#include <sherd/comm/watch/watchdog.h>

#include <fmt/format.h>

#include <utility>

#include <sherd/comm/core/detail/timeouts.h>

namespace sherd::comm {

bool adopt_failure(AbortDomain& domain, Store& store) {
  if (domain.aborted()) return true;
  // The first announcement in the store wins: all processes that adopt it name one cause.
  if (const auto notice = announced(store, kStoreAnswers)) domain.abort(notice->rank, notice->cause);
  return domain.aborted();
}

Watchdog::Watchdog(AbortDomain& domain, std::shared_ptr<Store> store, int world_rank,
                   std::chrono::milliseconds poll, Duties duties)
    : domain_(domain),
      store_(std::move(store)),
      world_rank_(world_rank),
      duties_(std::move(duties)),
      point_(domain.make_wait_point(poll)),
      thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(point_->mutex);
    // Under the mutex, so that the thread is either before its check or asleep.
    stop_ = true;
  }
  point_->changed.notify_all();
  thread_.join();
}

// The thread holds point_->mutex only while it sleeps.
void Watchdog::run() {
  std::unique_lock lock(point_->mutex);
  const auto stopped = [&] { return stop_; };
  while (!stop_) {
    if (!domain_.aborted())
      domain_.wait(*point_, lock, stopped);  // returns on a failure, too
    else if (announced_)
      point_->changed.wait_for(lock, point_->timeout, stopped);
    lock.unlock();
    if (!domain_.aborted()) check();
    if (domain_.aborted()) handle_failure();
    lock.lock();
  }
  lock.unlock();
  // A failure in the last interval is still announced before the process ends.
  if (domain_.aborted()) handle_failure();
}

void Watchdog::check() {
  try {
    if (!adopt_failure(domain_, *store_)) duties_.check();
    // A CommError of the store names the failed rank; other errors are this rank's own.
  } catch (const CommError& e) {
    domain_.abort(e.failed_rank(), e.what());
  } catch (const std::exception& e) {
    domain_.abort(world_rank_, fmt::format("rank {} failed: {}", world_rank_, e.what()));
  }
}

void Watchdog::handle_failure() {
  // Once: later failures follow from the first one.
  if (!std::exchange(announced_, true)) {
    if (duties_.fail) duties_.fail();
    const auto [rank, cause] = domain_.first_failure();
    try {
      announce(*store_, {rank, cause});
    } catch (const std::exception&) {  // the store is gone, which the other processes detect themselves
    }
  }
  // At every poll: operations that begin after the failure are aborted, too.
  if (duties_.abort) duties_.abort();
}

}  // namespace sherd::comm
