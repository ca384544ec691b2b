#include <sherd/comm/nccl/detail/session.h>

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace sherd::nccl {
namespace {

// Timeout of the report of a process's end after NCCL's own error.
constexpr std::chrono::milliseconds kNoticeTime{1500};

}  // namespace

Session::Session(const NcclApi& api, Device& device, std::shared_ptr<Store> store,
                 std::shared_ptr<comm::FlightRecorder> recorder, const NcclOptions& options)
    : api_(api),
      device_(device),
      store_(std::move(store)),
      world_rank_(recorder->world_rank()),
      options_(options),
      watch_({std::move(recorder)}),
      progress_(store_, options.name, world_rank_) {
  if (options.register_buffers)
    // Memory registered with NCCL must be deregistered before the allocator returns it to the driver.
    for (Allocator* allocator : {&device.allocator(), &device.staging()})
      listening_.push_back(
          allocator->on_return([this](const void* block, int64_t bytes) { forget(block, bytes); }));
  // A process with a GPU that no other shares, too: memory waits for what runs on its own.
  if (&device.allocator() != &device.staging())
    for (Allocator* allocator : {&device.allocator(), &device.staging()})
      listening_.push_back(allocator->gate([this] { return std::make_shared<Issuing>(issue_in_quiet()); }));
  // Started last: the thread uses all members.
  watchdog_.emplace(domain(), store_, world_rank_, options.poll,
                    comm::Watchdog::Duties{.check = [this] { poll(); },
                                           .fail = [this] { fail_device(); },
                                           .abort = [this] { abort_communicators(); }});
}

// Order: stop returning blocks, stop the watchdog, then close communicators, which the watchdog may still
// poll.
Session::~Session() {
  listening_.clear();
  watchdog_.reset();
  try {
    // The watchdog's last poll may have found queued calls; peers need this rank's counts.
    if (!failed()) announce_departure();
  } catch (const std::exception&) {  // the store is gone, which the other ranks detect themselves
  }
  for (const auto& c : communicators_) c->close(failed());
}

void Session::add(std::unique_ptr<Watched> communicator) {
  std::lock_guard lock(mutex_);
  communicators_.push_back(std::move(communicator));
}

Session::Issuing Session::issue_in_quiet() noexcept {
  Issuing held(issuing_);
  const auto running = [&] {
    std::lock_guard lock(mutex_);
    return std::ranges::any_of(communicators_, [](const auto& c) { return c->in_flight(); });
  };
  try {
    for (Backoff backoff(std::chrono::milliseconds(1)); !failed() && running();) backoff.sleep();
  } catch (const std::exception&) {  // the device has failed; the call of its memory says so
  }
  return held;
}

void Session::check(const std::string& where) {
  if (failed()) domain().raise(where);
}

void Session::fail(const std::string& where, const std::string& cause, int failed_rank) {
  domain().fail(failed_rank, where, cause);
}

// Fails with the missing ranks at the deadline, and at once with members that have left. Runs on the calling rank's
// thread; the watchdog may end it through check().
std::vector<std::string> Session::collect(const std::string& prefix, size_t index, const std::string& value,
                                          const std::vector<int>& members, const std::string& where,
                                          const Deadline& deadline) {
  check(where);
  const int count = static_cast<int>(members.size());
  const auto member = [&](int i) { return members[static_cast<size_t>(i)]; };
  return store_->collect(
      prefix, static_cast<int>(index), value, count, deadline.time,
      [&] {
        check(where);
        const std::vector<int> left = progress_.left_before(members, "", 0);
        if (left.empty()) return;
        // A rank may leave after its last call: the error is of those that have left and whose value is missing.
        std::vector<int> awaited;
        for (const int i : store_->absent(prefix, count))
          if (std::ranges::find(left, member(i)) != left.end()) awaited.push_back(member(i));
        if (!awaited.empty()) fail(where, comm::left_message(where, awaited), awaited.front());
      },
      [&](const std::vector<int>& missing) {
        std::vector<int> ranks;
        for (const int i : missing) ranks.push_back(member(i));
        fail(where, comm::timeout_message(where, deadline.timeout, ranks), ranks.front());
      });
}

void Session::poll() {
  announce_departure();
  progress_.poll();
  poll_communicators();
}

// Announced only when nothing is queued any more: a departure carries the numbers of the issued calls, so that
// peers know which calls this rank takes part in.
void Session::announce_departure() {
  if (!leaving_ || departure_announced_) return;
  {
    std::lock_guard lock(mutex_);
    // A queued call may still run; the next turn tries again.
    for (const auto& c : communicators_)
      if (c->has_queued()) return;
  }
  progress_.leave();
  departure_announced_ = true;
}

void Session::poll_communicators() {
  Trouble trouble;
  // The first communicator with trouble is enough: the whole launch fails with it.
  {
    std::lock_guard lock(mutex_);
    for (auto c = communicators_.begin(); c != communicators_.end() && trouble.text.empty(); ++c)
      trouble = (*c)->poll();
  }
  if (trouble.text.empty()) return;
  if (trouble.of_network) {
    // NCCL often reports a broken connection before the store reports why. The failure's cause is worth a
    // wait.
    if (!network_error_) network_error_ = std::chrono::steady_clock::now();
    if (std::chrono::steady_clock::now() < *network_error_ + kNoticeTime) return;
  }
  // Without mutex_: the watchdog's next step aborts the communicators under it.
  domain().abort(trouble.failed_rank, trouble.text);
}

void Session::await_notice(const std::string& where) {
  const auto deadline = std::chrono::steady_clock::now() + kNoticeTime;
  for (Backoff backoff; std::chrono::steady_clock::now() < deadline; backoff.sleep()) check(where);
}

std::string Session::find_stragglers(const std::string& communicator, const std::vector<int>& world_ranks,
                                     int64_t number) {
  // The cause is the one that another rank has detected meanwhile.
  return progress_.find_stragglers(communicator, world_ranks, number,
                                   [this] { return comm::adopt_failure(domain(), *store_); });
}

void Session::forget(const void* block, int64_t bytes) noexcept {
  std::vector<Watched*> communicators;  // without the lock: one may wait for a call that is being issued
  {
    std::lock_guard lock(mutex_);
    for (const auto& c : communicators_) communicators.push_back(c.get());
  }
  for (Watched* c : communicators) c->forget(block, bytes);
}

// Runs on the watchdog's thread, before the failure is announced.
void Session::fail_device() {
  try {
    // Raised and caught to get the exception object; the device throws it from every later wait of the
    // host.
    domain().raise(fmt::format("rank {}", world_rank_));
  } catch (...) {
    device_.fail(std::current_exception());
  }
}

void Session::abort_communicators() {
  // All at once: the end of one may wait for another's work on the device.
  std::lock_guard lock(mutex_);
  std::vector<std::jthread> ends;
  for (const auto& c : communicators_)
    // jthreads: the vector's destruction joins them, still under the lock.
    if (c->alive()) ends.emplace_back([&c] { c->abort(); });
}

}  // namespace sherd::nccl
