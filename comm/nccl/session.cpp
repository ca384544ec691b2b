#include <sherd/comm/nccl/session.h>

#include <fmt/format.h>

#include <sherd/comm/nccl/handle.h>

namespace sherd::nccl {

Session::Session(const NcclApi& api, Device& device, std::shared_ptr<Store> store, int world_rank,
                 const NcclOptions& options)
    : api_(api),
      device_(device),
      store_(std::move(store)),
      world_rank_(world_rank),
      options_(options),
      point_(domain_.make_wait_point(options.poll)),
      watchdog_([this] { watch(); }) {}

Session::~Session() {
  {
    std::lock_guard lock(point_->mutex);
    stop_ = true;
  }
  point_->changed.notify_all();
  watchdog_.join();
  for (Handle& h : handles_) h.close(domain_.aborted());
}

Handle& Session::add_handle() {
  std::lock_guard lock(mutex_);
  return handles_.emplace_back(*this);
}

void Session::check(const std::string& where) const {
  if (domain_.aborted()) domain_.raise(where);
}

void Session::fail(const std::string& where, const std::string& cause, int failed_rank) {
  domain_.fail(failed_rank, where, cause);
}

std::vector<std::string> Session::collect(const std::string& prefix, size_t index, const std::string& value,
                                          const std::vector<int>& members, const std::string& where,
                                          const Deadline& deadline) {
  check(where);
  store_->set(prefix + "/" + std::to_string(index), value);
  for (Backoff backoff;; backoff.sleep()) {
    if (auto values = store_->all(prefix, static_cast<int64_t>(members.size()))) return std::move(*values);
    check(where);
    if (!deadline.passed()) continue;
    std::vector<int> missing;
    for (int i : store_->absent(prefix, static_cast<int>(members.size())))
      missing.push_back(members[static_cast<size_t>(i)]);
    if (missing.empty()) continue;
    local::WaitPoint point;
    point.timeout = deadline.timeout;
    fail(where, local::AbortDomain::timeout_message(point, where, missing), missing.front());
  }
}

void Session::watch() {
  bool told = false;
  std::unique_lock lock(point_->mutex);
  while (!stop_) {
    if (domain_.aborted()) {
      // Handles may still be added by calls that were under way.
      point_->changed.wait_for(lock, told ? options_.poll : std::chrono::milliseconds(0),
                               [&] { return stop_; });
    } else {
      domain_.wait(*point_, lock, [&] { return stop_; });
    }
    lock.unlock();
    if (!domain_.aborted()) look();
    if (domain_.aborted()) give_up(told);
    lock.lock();
  }
  lock.unlock();
  if (domain_.aborted()) give_up(told);
}

void Session::look() {
  try {
    if (const auto notice = announced(*store_)) return domain_.abort(notice->rank, notice->cause);
    std::lock_guard lock(mutex_);
    for (Handle& h : handles_) {
      if (const std::string cause = h.look(); !cause.empty()) return domain_.abort(-1, cause);
    }
  } catch (const CommError& e) {
    domain_.abort(e.failed_rank(), e.what());
  } catch (const std::exception& e) {
    domain_.abort(world_rank_, fmt::format("rank {} failed: {}", world_rank_, e.what()));
  }
}

void Session::give_up(bool& told) {
  if (!told) {
    told = true;
    const auto [failed_rank, cause] = domain_.first_failure();
    try {
      domain_.raise(fmt::format("rank {}", world_rank_));
    } catch (...) {
      device_.fail(std::current_exception());
    }
    try {
      announce(*store_, {failed_rank, cause});
    } catch (const std::exception&) {  // the store is gone, which the other ranks see for themselves
    }
  }
  // All at once: the end of one may wait for another's work on the device.
  std::lock_guard lock(mutex_);
  std::vector<std::jthread> ends;
  for (Handle& h : handles_)
    if (h.alive()) ends.emplace_back([&h] { h.abort(); });
}

}  // namespace sherd::nccl
