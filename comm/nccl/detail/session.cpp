#include <sherd/comm/nccl/detail/session.h>

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include <sherd/comm/core/detail/timeouts.h>

namespace sherd::nccl {
namespace {

// How long the notice of a process's end may take after NCCL's own error.
constexpr std::chrono::milliseconds kNoticeTime{1500};

// One in so many turns of the watchdog polls for a roll call.
constexpr int64_t kTurnsPerRollCall = 4;

}  // namespace

Session::Session(const NcclApi& api, Device& device, std::shared_ptr<Store> store, int world_rank,
                 const NcclOptions& options)
    : api_(api),
      device_(device),
      store_(std::move(store)),
      world_rank_(world_rank),
      options_(options),
      point_(domain_.make_wait_point(options.poll)),
      roll_call_(*store_, options.name, world_rank, [this](const std::string& c) { return progress_of(c); }) {
  if (options.register_buffers)
    // Memory registered with NCCL must be deregistered before the allocator returns it to the driver.
    for (Allocator* allocator : {&device.allocator(), &device.staging()})
      listening_.push_back(
          allocator->on_return([this](const void* block, int64_t bytes) { forget(block, bytes); }));
  // Started last: the thread uses all members.
  watchdog_ = std::thread([this] { run_watchdog(); });
}

// Order: stop returning blocks, stop the watchdog, then close communicators, which the watchdog may still
// poll.
Session::~Session() {
  listening_.clear();
  {
    std::lock_guard lock(point_->mutex);
    stop_ = true;
  }
  point_->changed.notify_all();
  watchdog_.join();
  for (const auto& c : communicators_) c->close(domain_.aborted());
}

void Session::watch(std::unique_ptr<Watched> communicator) {
  std::lock_guard lock(mutex_);
  communicators_.push_back(std::move(communicator));
}

void Session::check(const std::string& where) const {
  if (domain_.aborted()) domain_.raise(where);
}

void Session::fail(const std::string& where, const std::string& cause, int failed_rank) {
  domain_.fail(failed_rank, where, cause);
}

// Puts this rank's value into the store and waits for those of all members. Fails with the missing ranks at
// the deadline, and at once with members that have left. Runs on the calling rank's thread; the watchdog may
// end it through check().
std::vector<std::string> Session::collect(const std::string& prefix, size_t index, const std::string& value,
                                          const std::vector<int>& members, const std::string& where,
                                          const Deadline& deadline) {
  check(where);
  store_->set(prefix + "/" + std::to_string(index), value);
  for (Backoff backoff;; backoff.sleep()) {
    const std::vector<int> gone = left_before(members, "", 0);  // what those have put is there by now
    if (auto values = store_->all(prefix, static_cast<int64_t>(members.size()))) return std::move(*values);
    check(where);
    if (!gone.empty()) {
      // Only members that have left *and* whose value is missing are an error: a rank may leave after its
      // last call.
      std::vector<int> awaited;
      for (int i : store_->absent(prefix, static_cast<int>(members.size())))
        if (const int rank = members[static_cast<size_t>(i)]; std::ranges::find(gone, rank) != gone.end())
          awaited.push_back(rank);
      if (!awaited.empty()) fail(where, comm::AbortDomain::left_message(where, awaited), awaited.front());
    }
    if (!deadline.passed()) continue;
    std::vector<int> missing;
    for (int i : store_->absent(prefix, static_cast<int>(members.size())))
      missing.push_back(members[static_cast<size_t>(i)]);
    // A value that arrived between the two reads is taken by the next turn.
    if (missing.empty()) continue;
    comm::WaitPoint point;
    point.timeout = deadline.timeout;
    fail(where, comm::AbortDomain::timeout_message(point, where, missing), missing.front());
  }
}

// The watchdog's thread. It holds point_->mutex only while it sleeps. It polls the store for peers' failures
// and departures, and NCCL for errors and late calls; after a failure it aborts communicators.
void Session::run_watchdog() {
  std::unique_lock lock(point_->mutex);
  while (!stop_) {
    if (domain_.aborted()) {
      // Calls that were under way may still make communicators.
      point_->changed.wait_for(lock, failure_announced_ ? options_.poll : std::chrono::milliseconds(0),
                               [&] { return stop_; });
      // domain_.wait returns on a failure, at stop_, or after one poll interval (the point's timeout).
    } else {
      domain_.wait(*point_, lock, [&] { return stop_; });
    }
    lock.unlock();
    if (!domain_.aborted()) poll_peers();
    if (domain_.aborted()) abort_all();
    lock.lock();
  }
  lock.unlock();
  // After a failure, communicators made meanwhile are aborted, too. Otherwise the departure is announced.
  if (domain_.aborted()) return abort_all();
  try {
    announce_departure();
  } catch (const std::exception&) {  // the store is gone, which the other ranks see for themselves
  }
}

void Session::poll_peers() {
  try {
    if (adopt_peer_failure()) return;
    poll_departures();
    if (++turns_ % kTurnsPerRollCall == 0) roll_call_.answer();
    poll_communicators();
    // A CommError of the store names the failed rank; other errors are this rank's own.
  } catch (const CommError& e) {
    domain_.abort(e.failed_rank(), e.what());
  } catch (const std::exception& e) {
    domain_.abort(world_rank_, fmt::format("rank {} failed: {}", world_rank_, e.what()));
  }
}

bool Session::adopt_peer_failure() {
  const auto notice = announced(*store_, comm::kStoreAnswers);
  if (notice) domain_.abort(notice->rank, notice->cause);
  return domain_.aborted();
}

// Announced only when nothing is queued any more: departures carry the counts of the issued calls, so that
// peers know which calls this rank takes part in.
void Session::announce_departure() {
  if (!leaving_ || departure_announced_) return;
  std::string counts;
  {
    std::lock_guard lock(mutex_);
    for (const auto& c : communicators_) {
      // A queued call may still run; the next turn tries again.
      if (c->has_queued()) return;
      for (const auto& [key, number] : c->counts()) counts += fmt::format("{} {}\n", number, key);
    }
  }
  const std::string prefix = options_.name + "/ended";
  // Departures have consecutive numbers in the store, so that each watchdog reads only those it has not
  // seen.
  const int64_t place = store_->add(prefix, 1) - 1;
  store_->set(fmt::format("{}/{}", prefix, place), fmt::format("{}\n{}", world_rank_, counts));
  departure_announced_ = true;
}

void Session::poll_departures() {
  announce_departure();
  while (const auto text =
             store_->get(fmt::format("{}/ended/{}", options_.name, departures_seen_), comm::kStoreAnswers)) {
    ++departures_seen_;
    std::istringstream lines(*text);
    int rank = -1;
    lines >> rank;
    std::lock_guard lock(departures_mutex_);
    auto& counts = departures_[rank];
    int64_t number = 0;
    for (std::string key; lines >> number && lines.get() && std::getline(lines, key);) counts[key] = number;
  }
}

std::vector<int> Session::left_before(const std::vector<int>& ranks, const std::string& key,
                                      int64_t number) const {
  std::lock_guard lock(departures_mutex_);
  std::vector<int> gone;
  for (const int rank : ranks) {
    const auto departure = departures_.find(rank);
    // number 0: any member that has left counts. Otherwise those that left before call `number` of `key`.
    if (departure == departures_.end()) continue;
    const auto counted = departure->second.find(key);
    if (number == 0 || counted == departure->second.end() || counted->second < number) gone.push_back(rank);
  }
  return gone;
}

void Session::poll_communicators() {
  Trouble trouble;
  Watched* troubled = nullptr;
  // The first communicator with trouble is enough: the whole launch fails with it.
  {
    std::lock_guard lock(mutex_);
    for (const auto& c : communicators_) {
      trouble = c->poll();
      troubled = c.get();
      if (trouble.kind != Trouble::none) break;
    }
  }
  switch (trouble.kind) {
    case Trouble::none:
      return;
    case Trouble::late:
      // Asks all ranks which of them has not made the call, without mutex_: answering takes it.
      trouble.text = troubled->late(trouble.text, trouble.timeout, trouble.calls);
      break;
    case Trouble::network:
      // NCCL often reports a broken connection before the store reports why. The failure's cause is worth a
      // wait.
      if (!network_error_) network_error_ = std::chrono::steady_clock::now();
      if (std::chrono::steady_clock::now() < *network_error_ + kNoticeTime) return;
      break;
    case Trouble::left:
    case Trouble::other:
      break;
  }
  domain_.abort(trouble.failed_rank, trouble.text);
}

void Session::await_notice(const std::string& where) const {
  const auto deadline = std::chrono::steady_clock::now() + kNoticeTime;
  for (Backoff backoff; std::chrono::steady_clock::now() < deadline; backoff.sleep()) check(where);
}

std::string Session::who_is_behind(const std::string& communicator, const std::vector<int>& world_ranks,
                                   int64_t calls) {
  // What another rank has found meanwhile is the cause.
  return roll_call_.ask(communicator, world_ranks, calls,
                        [this] { return failed() || adopt_peer_failure(); });
}

Progress Session::progress_of(const std::string& communicator) {
  std::lock_guard lock(mutex_);
  for (const auto& c : communicators_)
    if (c->name() == communicator) return c->progress();
  return {};
}

void Session::forget(const void* block, int64_t bytes) noexcept {
  std::vector<Watched*> communicators;  // without the lock: one may wait for a call that is being issued
  {
    std::lock_guard lock(mutex_);
    for (const auto& c : communicators_) communicators.push_back(c.get());
  }
  for (Watched* c : communicators) c->forget(block, bytes);
}

void Session::abort_all() {
  if (!std::exchange(failure_announced_, true)) {
    const auto [failed_rank, cause] = domain_.first_failure();
    try {
      // Raised and caught to get the exception object; the device throws it from every later wait of the
      // host.
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
  for (const auto& c : communicators_)
    if (c->alive()) ends.emplace_back([&c] { c->abort(); });
}

}  // namespace sherd::nccl
