#include <sherd/comm/nccl/session.h>

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include <sherd/comm/nccl/handle.h>

namespace sherd::nccl {
namespace {

// A store that does not answer the watchdog for so long is lost, whatever the timeout of calls: the watchdog
// looks at nothing else meanwhile.
constexpr std::chrono::seconds kAnswerTime{10};

// How long the notice of a process's end may take after NCCL's own error.
constexpr std::chrono::milliseconds kNoticeTime{1500};

// Of the watchdog's looks, every so many asks whether somebody calls the roll.
constexpr int64_t kLooksPerRollCall = 4;

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
    for (Allocator* allocator : {&device.allocator(), &device.staging()})
      listening_.push_back(
          allocator->on_return([this](const void* block, int64_t bytes) { forget(block, bytes); }));
  watchdog_ = std::thread([this] { watch(); });
}

Session::~Session() {
  listening_.clear();
  {
    std::lock_guard lock(point_->mutex);
    stop_ = true;
  }
  point_->changed.notify_all();
  watchdog_.join();
  for (Handle& h : handles_) h.close(domain_.aborted());
}

Handle& Session::add_handle(const std::string& name, const std::vector<int>& world_ranks) {
  std::lock_guard lock(mutex_);
  return handles_.emplace_back(*this, name, world_ranks);
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
    const std::vector<int> gone = left_before(members, "", 0);  // what those have put is there by now
    if (auto values = store_->all(prefix, static_cast<int64_t>(members.size()))) return std::move(*values);
    check(where);
    if (!gone.empty()) {
      std::vector<int> awaited;
      for (int i : store_->absent(prefix, static_cast<int>(members.size())))
        if (const int rank = members[static_cast<size_t>(i)]; std::ranges::find(gone, rank) != gone.end())
          awaited.push_back(rank);
      if (!awaited.empty())
        fail(where, local::AbortDomain::left_message(where, awaited), awaited.front());
    }
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
  if (domain_.aborted()) return give_up(told);
  try {
    tell_end();
  } catch (const std::exception&) {  // the store is gone, which the other ranks see for themselves
  }
}

void Session::look() {
  try {
    if (heard()) return;
    look_at_ends();
    if (++looks_ % kLooksPerRollCall == 0) roll_call_.answer();
    look_at_handles();
  } catch (const CommError& e) {
    domain_.abort(e.failed_rank(), e.what());
  } catch (const std::exception& e) {
    domain_.abort(world_rank_, fmt::format("rank {} failed: {}", world_rank_, e.what()));
  }
}

bool Session::heard() {
  const auto notice = announced(*store_, kAnswerTime);
  if (notice) domain_.abort(notice->rank, notice->cause);
  return domain_.aborted();
}

void Session::tell_end() {
  if (!leaving_ || end_told_) return;
  std::string counts;
  {
    std::lock_guard lock(mutex_);
    for (Handle& h : handles_) {
      if (h.has_queued()) return;
      for (const auto& [key, number] : h.counts()) counts += fmt::format("{} {}\n", number, key);
    }
  }
  const std::string prefix = options_.name + "/ended";
  const int64_t place = store_->add(prefix, 1) - 1;
  store_->set(fmt::format("{}/{}", prefix, place), fmt::format("{}\n{}", world_rank_, counts));
  end_told_ = true;
}

void Session::look_at_ends() {
  tell_end();
  while (const auto text = store_->get(fmt::format("{}/ended/{}", options_.name, ends_seen_), kAnswerTime)) {
    ++ends_seen_;
    std::istringstream lines(*text);
    int rank = -1;
    lines >> rank;
    std::lock_guard lock(ends_mutex_);
    auto& counts = ends_[rank];
    int64_t number = 0;
    for (std::string key; lines >> number && lines.get() && std::getline(lines, key);) counts[key] = number;
  }
}

std::vector<int> Session::left_before(const std::vector<int>& ranks, const std::string& key,
                                      int64_t number) const {
  std::lock_guard lock(ends_mutex_);
  std::vector<int> gone;
  for (const int rank : ranks) {
    const auto end = ends_.find(rank);
    if (end == ends_.end()) continue;
    const auto counted = end->second.find(key);
    if (number == 0 || counted == end->second.end() || counted->second < number) gone.push_back(rank);
  }
  return gone;
}

void Session::look_at_handles() {
  Handle::Trouble trouble;
  Handle* troubled = nullptr;
  {
    std::lock_guard lock(mutex_);
    for (Handle& h : handles_) {
      trouble = h.look();
      troubled = &h;
      if (trouble.kind != Handle::Trouble::none) break;
    }
  }
  switch (trouble.kind) {
    case Handle::Trouble::none:
      return;
    case Handle::Trouble::late:
      trouble.text = troubled->late(trouble.text, trouble.timeout, trouble.calls);
      break;
    case Handle::Trouble::network:
      if (!network_error_) network_error_ = std::chrono::steady_clock::now();
      if (std::chrono::steady_clock::now() < *network_error_ + kNoticeTime) return;
      break;
    case Handle::Trouble::left:
    case Handle::Trouble::other:
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
  return roll_call_.ask(communicator, world_ranks, calls, [this] { return failed() || heard(); });
}

Progress Session::progress_of(const std::string& communicator) {
  std::lock_guard lock(mutex_);
  for (Handle& h : handles_)
    if (h.name() == communicator) return h.progress();
  return {};
}

void Session::forget(const void* block, int64_t bytes) noexcept {
  std::vector<Handle*> handles;  // a handle may wait for a call that is being issued
  {
    std::lock_guard lock(mutex_);
    for (Handle& h : handles_) handles.push_back(&h);
  }
  for (Handle* h : handles) h->forget(block, bytes);
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
