#include <sherd/comm/nccl/detail/handle.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace sherd::nccl {
namespace {

ncclConfig_t config_of(const NcclOptions& options) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (options.max_ctas > 0) config.maxCTAs = options.max_ctas;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  if (options.windows) config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
#endif
  return config;
}

/// Returns whether NCCL reports the end of a peer by this result.
bool of_network(ncclResult_t result) { return result == ncclRemoteError || result == ncclSystemError; }

/// NCCL returns success as soon as one of its own threads has started a split or a window. The communicator's
/// state tells when that is complete.
ncclResult_t taken_up(ncclResult_t result) { return result == ncclSuccess ? ncclInProgress : result; }

// Time after which a communicator is aborted whose peers do not close theirs.
constexpr std::chrono::seconds kCloseTime{10};

// Most calls are complete by then, and a stream's worker that sleeps longer lets the device run dry.
constexpr std::chrono::microseconds kAwake{200};

}  // namespace

Handle& add_handle(Session& session, const std::string& name, const std::vector<int>& world_ranks) {
  auto owned = std::make_unique<Handle>(session, name, world_ranks);
  Handle& handle = *owned;
  session.add(std::move(owned));
  return handle;
}

// Returns the text for a late call. Waits up to 1.5 s for the answers of other ranks; call it without mutex_.
std::string Handle::late(const std::string& where, std::chrono::milliseconds timeout,
                         const Awaited& awaited) {
  const std::string behind = session_.find_stragglers(name_, world_ranks_, awaited.collective());
  return fmt::format(
      "{}: not done {} ms after it was issued; {}. nccl.check_calls compares every call before it is made; "
      "or "
      "raise the timeout",
      where, timeout.count(),
      behind.empty() ? "a rank of its group did not call it, called something else, or cannot be reached"
                     : behind);
}

std::string Handle::text_of(ncclResult_t result, ncclComm_t comm) const {
  const char* const more = session_.api().get_last_error(comm);
  return fmt::format("NCCL: {} ({})", session_.api().get_error_string(result),
                     more && *more ? more : "NCCL_DEBUG=WARN tells more");
}

void Handle::settle(std::unique_lock<std::mutex>& lock, ncclResult_t result, const std::string& where,
                    const Deadline& deadline) {
  // Nonblocking communicators return in progress: the state is polled, so that failures of other ranks and
  // the deadline end the wait.
  for (Backoff backoff(std::chrono::milliseconds(1), kAwake); result == ncclInProgress;) {
    // The lock is released while sleeping, so that the watchdog can abort the communicator.
    lock.unlock();
    backoff.sleep();
    session_.check(where);
    const Awaited awaited = this->awaited();
    if (deadline.passed()) session_.fail(where, late(where, deadline.timeout, awaited));
    if (const std::vector<int> left = gone(awaited); !left.empty())
      session_.fail(where, comm::left_message(where, left), left.front());
    lock.lock();
    session_.check(where);  // the watchdog may have ended the communicator
    if (!comm_) continue;
    const ncclResult_t asked = session_.api().comm_get_async_error(comm_, &result);
    if (asked != ncclSuccess) result = asked;
  }
  if (result == ncclSuccess) return;
  const std::string text = text_of(result, comm_);
  lock.unlock();
  // A network error is usually the consequence of a failed peer, whose own report names the cause.
  // await_notice() throws that report when it comes.
  if (of_network(result)) session_.await_notice(where);
  session_.fail(where, where + ": " + text);
}

void Handle::init(int rank, int size, const ncclUniqueId& id, const std::string& where,
                  const Deadline& deadline) {
  count_memory([&] {
    // driver_ for the whole call, mutex_ in turns: the watchdog takes mutex_ alone and may abort in between.
    std::lock_guard driver(driver_);
    std::unique_lock lock(mutex_);
    session_.check(where);
    ncclConfig_t config = config_of(session_.options());
    settle(lock, session_.api().comm_init_rank_config(&comm_, size, id, rank, &config), where, deadline);
  });
}

void Handle::init_split(Handle& parent, int color, int key, const std::string& where,
                        const Deadline& deadline) {
  ncclConfig_t config = config_of(session_.options());
  // A split is not numbered: other ranks' progress is not compared with it.
  parent.begin(Awaited{});
  count_memory([&] {
    parent.run(where, deadline, [&](ncclComm_t comm) {
      return taken_up(session_.api().comm_split(comm, color, key, &split_, &config));
    });
    std::lock_guard driver(driver_);
    std::unique_lock lock(mutex_);
    // NCCL's thread writes the new communicator to split_ when the split is complete.
    for (Backoff backoff(std::chrono::milliseconds(1)); !take_split();) {
      lock.unlock();
      backoff.sleep();
      session_.check(where);
      if (deadline.passed()) session_.fail(where, late(where, deadline.timeout, {}));
      lock.lock();
    }
    session_.check(where);  // the watchdog aborts what was taken
    // The communicator exists but may still be initializing.
    settle(lock, ncclInProgress, where, deadline);
  });
}

bool Handle::take_split() noexcept {
  const ncclComm_t split = std::atomic_ref(split_).load(std::memory_order_acquire);
  if (!split) return false;
  // Under mutex_: from here on the watchdog polls and aborts the communicator.
  comm_ = split;
  std::atomic_ref(split_).store(nullptr, std::memory_order_relaxed);
  return true;
}

void Handle::run(const std::string& where, const Deadline& deadline, const Call& call) {
  std::lock_guard driver(driver_);
  std::unique_lock lock(mutex_);
  session_.check(where);
  settle(lock, call(comm_), where, deadline);
}

void Handle::count_memory(const std::function<void()>& call) {
  auto counted = session_.memory().count(call);
  std::lock_guard lock(mutex_);
  if (counted) counted_.push_back(std::move(counted));
}

void Handle::run_counted(const std::string& where, const Deadline& deadline, const Call& call) {
  // NCCL connects peers, with memory for it, when a communicator first uses an algorithm.
  if (used_.exchange(true) && !session_.device().issues_in_order()) return run(where, deadline, call);
  count_memory([&] { run(where, deadline, call); });
}

void Handle::register_memory(const void* data, int64_t bytes, const std::string& where,
                             const Deadline& deadline) {
  const char* const begin = static_cast<const char*>(data);
  std::lock_guard driver(driver_);
  std::unique_lock lock(mutex_);
  session_.check(where);
  const auto covers = [&](const Registration& r) { return r.begin <= begin && begin + bytes <= r.end; };
  if (bytes == 0 || std::any_of(registered_.begin(), registered_.end(), covers)) return;
  // Windows are registered memory already.
  for (const Opened& w : windows_)
    if (const auto* const block = static_cast<const char*>(w.block->data());
        block <= begin && begin + bytes <= block + w.block->bytes())
      return;
  // The entry exists before the call: NCCL writes the handle while settle() waits.
  Registration& r = registered_.emplace_back(Registration{begin, begin + bytes, nullptr});
  settle(lock,
         session_.api().comm_register(comm_, const_cast<char*>(begin), static_cast<size_t>(bytes), &r.handle),
         where, deadline);
}

void Handle::forget(const void* block, int64_t bytes) noexcept {
  const char* const begin = static_cast<const char*>(block);
  // Waits for a call that is being issued, which may be about to use the registration.
  std::lock_guard driver(driver_);
  std::lock_guard lock(mutex_);
  std::erase_if(registered_, [&](const Registration& r) {
    if (r.end <= begin || begin + bytes <= r.begin) return false;
    // After a failure of the launch the communicator may be in any state; the watchdog ends it.
    if (comm_ && r.handle && !session_.failed()) session_.api().comm_deregister(comm_, r.handle);
    return true;
  });
}

bool Handle::open_window(std::shared_ptr<const WindowBlock> block, const std::string& where,
                         const Deadline& deadline) {
  begin(Awaited{});
  std::lock_guard driver(driver_);
  std::unique_lock lock(mutex_);
  session_.check(where);
  // The entry holds the block from before the call until the window is closed.
  Opened& w = windows_.emplace_back(Opened{std::move(block), {}});
  const ncclResult_t result = session_.api().window_register(
      comm_, w.block->data(), static_cast<size_t>(w.block->bytes()), &w.window, kSymmetricWindow);
  settle(lock, taken_up(result), where, deadline);
  if (w.window) return true;
  // NCCL succeeded without a window: topology or environment allow none, on all ranks alike.
  windows_.pop_back();
  return false;
}

void Handle::close_window(const WindowBlock& block) noexcept {
  try {
    const Deadline deadline(kCloseTime);
    Backoff backoff;
    // Deregistering is allowed only when no operation uses the window.
    while (!idle() && !deadline.passed() && !session_.failed()) backoff.sleep();
    std::lock_guard driver(driver_);
    std::unique_lock lock(mutex_);
    const auto at = std::find_if(windows_.begin(), windows_.end(),
                                 [&](const Opened& w) { return w.block.get() == &block; });
    // The block stays in windows_ and outlives the communicator, which may still map it.
    if (at == windows_.end() || !idle() || session_.failed() || !comm_) return;
    ncclResult_t state = taken_up(session_.api().window_deregister(comm_, at->window));
    while (state == ncclInProgress && !deadline.passed()) {
      lock.unlock();
      backoff.sleep();
      lock.lock();
      if (session_.failed() || !comm_) return;  // the watchdog ends it
      if (session_.api().comm_get_async_error(comm_, &state) != ncclSuccess) return;
    }
    if (state == ncclSuccess) windows_.erase(at);
  } catch (const std::exception&) {  // a device that failed cannot report whether it is done
  }
}

char* Handle::scratch(const ExecutionContext& context, int64_t bytes) {
  // Grows only: a new allocation may wait for the device.
  if (bytes > scratch_bytes_) {
    static constexpr const char* kName = "nccl slices";
    Allocator& allocator = session_.device().allocator();
    // Operations queued before still use the old memory; the context keeps it until they have run.
    context.keep(std::exchange(scratch_, nullptr));
    // Zero first: a failed allocation leaves a consistent, empty scratch.
    scratch_bytes_ = 0;
    scratch_ = {static_cast<char*>(allocator.allocate(bytes, MemoryClass::message, kName, true)),
                [&allocator](char* p) { allocator.release(p); }};
    scratch_bytes_ = bytes;
  }
  return scratch_.get();
}

int32_t* Handle::word(bool& fresh) {
  fresh = !word_;
  if (fresh) {
    static constexpr const char* kName = "nccl barrier";
    Allocator& allocator = session_.device().allocator();
    word_ = {static_cast<int32_t*>(allocator.allocate(sizeof(int32_t), MemoryClass::message, kName, true)),
             [&allocator](int32_t* p) { allocator.release(p); }};
  }
  return word_.get();
}

void Handle::begin(const std::string& where) {
  begin({world_ranks_, name_, session_.progress().begin(name_, where)});
}

void Handle::begin_message(int peer, bool sends) {
  // Messages are numbered for each pair and direction; the peer's number of the same message is awaited.
  const int64_t number = session_.progress().begin(fmt::format("{}{}{}", name_, sends ? '>' : '<', peer));
  begin({{peer}, fmt::format("{}{}{}", name_, sends ? '<' : '>', session_.world_rank()), number, true});
}

void Handle::begin(Awaited awaited) {
  std::lock_guard lock(flights_mutex_);
  awaited_ = std::move(awaited);
}

Handle::Awaited Handle::awaited() {
  std::lock_guard lock(flights_mutex_);
  return awaited_;
}

std::vector<int> Handle::gone(const Awaited& awaited) const {
  // Splits and windows are not numbered; their deadline ends them.
  if (awaited.number == 0) return {};
  return session_.progress().left_before(awaited.ranks, awaited.key, awaited.number);
}

std::shared_ptr<void> Handle::queued() {
  // On the host's thread at the call. The token is destroyed after the worker has issued the operation, or
  // with a dropped one.
  queued_.fetch_add(1);
  return {static_cast<void*>(this), [this](void*) { queued_.fetch_sub(1); }};
}

void Handle::under_way(const std::string& where, const Deadline& deadline,
                       std::shared_ptr<NativeEvent> done) {
  std::lock_guard lock(flights_mutex_);
  // The deadline counts from the issue, not from the host's call: time in the stream's queue is not included.
  flights_.push_back({where, deadline, std::move(done), awaited_});
}

bool Handle::idle() { return queued_.load() == 0 && !in_flight(); }

bool Handle::in_flight() {
  std::lock_guard lock(flights_mutex_);
  std::erase_if(flights_, [](const Flight& f) { return f.done->done(); });
  return !flights_.empty();
}

// Runs on the watchdog's thread. A returned trouble fails the launch; the order of checks puts the most exact
// cause first.
Trouble Handle::poll() {
  std::optional<Flight> late_one;
  {
    std::lock_guard lock(flights_mutex_);
    std::erase_if(flights_, [](const Flight& f) { return f.done->done(); });
    // A missing rank that has left is reported first: no timeout can help then.
    for (const Flight& f : flights_)
      if (const std::vector<int> left = gone(f.awaited); !left.empty())
        return {.text = comm::left_message(f.where, left), .failed_rank = left.front()};
    for (const Flight& f : flights_)
      if (!late_one && f.deadline.passed()) late_one = f;
  }
  if (late_one) return {.text = late(late_one->where, late_one->deadline.timeout, late_one->awaited)};
  // NCCL's asynchronous errors appear here while no thread of this rank calls NCCL.
  std::unique_lock lock(mutex_, std::try_to_lock);  // the holder of the lock polls, too
  if (!lock || !comm_) return {};
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = session_.api().comm_get_async_error(comm_, &state);
  if (asked != ncclSuccess) state = asked;
  if (state == ncclSuccess || state == ncclInProgress) return {};
  std::lock_guard flights(flights_mutex_);
  const std::string last = session_.progress().last(name_);
  const std::string where = !flights_.empty() ? flights_.front().where
                            : !last.empty()   ? "after " + last
                                              : fmt::format("rank {}", session_.world_rank());
  return {.text = where + ": " + text_of(state, comm_), .of_network = of_network(state)};
}

bool Handle::alive() {
  std::lock_guard lock(mutex_);
  return comm_ || take_split();
}

// The watchdog aborts all communicators at once, on threads: one may wait for kernels of another.
void Handle::abort() noexcept {
  std::lock_guard lock(mutex_);
  // A split may complete after its caller has thrown: it must be aborted as well.
  if (!comm_) take_split();
  // Ends kernels that wait for peers on the GPU; ncclCommDestroy would wait for them.
  if (comm_) session_.api().comm_abort(comm_);
  comm_ = nullptr;
}

void Handle::close(bool failed) noexcept {
  if (failed) return abort();
  try {
    const Deadline deadline(kCloseTime);
    Backoff backoff;
    while (!idle() && !deadline.passed()) backoff.sleep();
    if (idle() && windows_.empty()) {  // of a window that is still open, only an abort is the end
      std::lock_guard lock(mutex_);
      if (!comm_) return;
      for (const Registration& r : registered_)
        if (r.handle) session_.api().comm_deregister(comm_, r.handle);
      registered_.clear();
      // Finalize completes only when peers finalize, too: a missing peer costs kCloseTime, then an abort.
      ncclResult_t state = session_.api().comm_finalize(comm_);
      while (state == ncclInProgress && !deadline.passed()) {
        backoff.sleep();
        if (session_.api().comm_get_async_error(comm_, &state) != ncclSuccess) break;
      }
      if (state == ncclSuccess) {
        session_.api().comm_destroy(comm_);
        comm_ = nullptr;
      }
    }
  } catch (const std::exception&) {  // a device that fails cannot tell whether it is done
  }
  abort();
}

}  // namespace sherd::nccl
