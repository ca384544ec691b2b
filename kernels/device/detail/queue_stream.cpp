#include <sherd/kernels/device/detail/queue_stream.h>

#include <omp.h>

#include <algorithm>
#include <utility>

#include <sherd/kernels/device/cpu/tasks.h>

namespace sherd {
namespace {

/// A failure that came with an event, on the worker of the stream that waits for it.
struct Inherited {
  std::shared_ptr<StreamFailure> failure;
};

[[noreturn]] void tell(const Device& device, StreamFailure& failure) {
  device.heard();
  failure.rethrow();
}

/// Operations from one native event to the next. Fewer where few may be held, so that a host thread that
/// waits for room has an event to wait for.
int64_t pieces_per_event(int64_t most_work) { return std::clamp<int64_t>(most_work / 2, 1, 64); }

/// Launches that the native queue has at most, about. A stream of CUDA takes some 1024; the next one blocks its thread, which may
/// hold a lock of the driver that other streams need to get on.
constexpr int64_t kMostLaunches = 768;
/// Launches between two events: others wait for room by them.
constexpr int64_t kLaunchesPerEvent = 192;
int64_t launches_of(const Operation& what) { return what.kind == WorkKind::orthogonalize ? 24 : 3; }

/// True on a stream's thread: work that its operations queue must not wait for other streams.
thread_local bool is_worker = false;

}  // namespace

struct QueueEventState final : Event::State {
  explicit QueueEventState(Device& d) : device(d) {}

  Device& device;
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  bool reached = false;  // by the worker; the device may be behind
  std::shared_ptr<StreamFailure> failure;
  std::shared_ptr<NativeEvent> native;

  void reach(std::shared_ptr<StreamFailure> f, std::shared_ptr<NativeEvent> n) {
    {
      std::lock_guard lock(mutex);
      reached = true;
      failure = std::move(f);
      native = std::move(n);
    }
    changed.notify_all();
  }
  /// Waiting for it is neither to block nor to fail.
  bool past() const {
    std::lock_guard lock(mutex);
    return reached && !failure && !native;
  }
  /// Blocks until the worker has reached this event.
  void wait_reached() const {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return reached; });
  }
  bool done() const override {
    std::lock_guard lock(mutex);
    return reached && (!native || native->done());
  }
  void synchronize() const override {
    device.count_host_sync();
    wait_reached();
    if (failure) tell(device, *failure);
    if (native) {
      native->synchronize();
      device.rethrow_failure();
    }
  }
};

QueueStream::QueueStream(Device& device, std::string name, int threads, std::unique_ptr<NativeQueue> native)
    : device_(device),
      name_(std::move(name)),
      native_(std::move(native)),
      most_work_(device.run_ahead().most_work()),
      scratch_(device.allocator()) {
  context_.threads = threads;
  if (native_) {
    context_.scratch = [this](int64_t bytes) { return native_->scratch(bytes); };
    context_.native = native_->handle();
    context_.queue = native_.get();
  } else {
    context_.scratch = [this](int64_t bytes) { return scratch_.get(bytes); };
  }
  joined_ = device_.run_ahead().join([this] { return oldest(); });
  worker_ = std::thread([this] { run(); });
  device_.streams().add(*this);
}

QueueStream::~QueueStream() {
  device_.streams().remove(*this);
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  more_.notify_one();
  worker_.join();
  if (failure_ && !failure_->heard) device_.hand_on(failure_);
}

void QueueStream::rethrow_failure(Lock& lock) {
  if (failure_) {
    const auto failure = failure_;
    lock.unlock();
    tell(device_, *failure);
  }
  if (native_) device_.rethrow_failure();
}

bool QueueStream::idle() {
  const Lock lock(mutex_);
  return !native_ && queue_.empty() && running_ == 0 && !failure_;
}

void QueueStream::run_on_callers() {
  const Lock lock(mutex_);
  on_callers_ = true;
}

bool QueueStream::inside() const {
  const auto here = std::this_thread::get_id();
  return here == worker_.get_id() || here == caller_;
}

void QueueStream::wait_for_room(Lock& lock) {
  if (held() < most_work_ || inside()) return;
  settle();
  if (held() < most_work_) return;
  device_.run_ahead().count_wait();
  const int64_t enough = most_work_ - 1 - most_work_ / 4;  // not one by one: each wake costs
  ++waiting_;
  while (held() > enough && !failure_) {
    if (issued_.empty()) {
      room_.wait(lock);
      continue;
    }
    const auto event = issued_.front().event;
    lock.unlock();
    try {
      event->synchronize();
    } catch (...) {
      lock.lock();
      --waiting_;
      throw;
    }
    lock.lock();
    settle();
  }
  --waiting_;
}

void QueueStream::append(Item item, Lock& lock) {
  item.number = device_.run_ahead().next();
  queue_.push_back(std::move(item));
  device_.run_ahead().note_work(held());
  more_.notify_one();
  if (native_ && device_.issues_in_order() && !inside()) wait_issued(lock);
}

void QueueStream::wait_issued(Lock& lock) {
  idle_.wait(lock, [&] { return queue_.empty() && running_ == 0; });
}

void QueueStream::wait_issued() {
  Lock lock(mutex_);
  wait_issued(lock);
}

void QueueStream::push(Item item) {
  Lock lock(mutex_);
  rethrow_failure(lock);
  if (on_callers_ && item.work && !inside() && !is_worker && !omp_in_parallel()) {
    wait_issued(lock);
    rethrow_failure(lock);
    return run_here(std::move(item), lock);
  }
  wait_for_room(lock);
  rethrow_failure(lock);
  append(std::move(item), lock);
}

void QueueStream::run_here(Item item, Lock& lock) {
  const int64_t number = device_.run_ahead().next();
  running_ = number;
  caller_ = std::this_thread::get_id();
  device_.run_ahead().note_work(held());
  lock.unlock();
  {
    const cpu::Threads team(context_.threads);
    run_item(item);
  }
  item = {};
  lock.lock();
  caller_ = {};
  finished(number, nullptr);
  queue_.empty() ? idle_.notify_all() : more_.notify_one();
}

void QueueStream::submit(Operation what, std::function<void(ExecutionContext&)> work) {
  const Trace* trace = device_.trace();
  push({what, std::move(work), nullptr, trace && trace->enabled()});
}

Event QueueStream::record() {
  auto state = std::make_shared<QueueEventState>(device_);
  if (idle()) {
    state->reach(nullptr, nullptr);
  } else {
    push({.what = "event", .work = nullptr, .event = state});
  }
  return Event(state);
}

void QueueStream::wait(const Event& event) {
  if (!event.state()) return;
  // Every event with a state comes from a QueueStream, the only kind of stream.
  if (static_cast<const QueueEventState&>(*event.state()).past()) {
    Lock lock(mutex_);
    return rethrow_failure(lock);
  }
  push({"wait",
        [state = event.state()](ExecutionContext& context) {
          const auto& other = static_cast<const QueueEventState&>(*state);
          other.wait_reached();
          if (other.failure) throw Inherited{other.failure};
          if (!other.native) return;
          if (context.queue) {
            context.queue->wait(*other.native);
          } else {
            other.native->synchronize();
          }
        },
        nullptr});
}

void QueueStream::synchronize() {
  if (idle()) {
    device_.count_host_sync();
  } else {
    auto state = std::make_shared<QueueEventState>(device_);
    {
      // Also after a failure: what is queued is dropped before this returns.
      Lock lock(mutex_);
      wait_for_room(lock);
      append({.what = "event", .work = nullptr, .event = state}, lock);
    }
    state->synchronize();
  }
  if (this == &device_.compute()) device_.rethrow_unheard();
}

std::exception_ptr QueueStream::reset_failure() {
  const auto dry = std::make_shared<QueueEventState>(device_);
  {
    Lock lock(mutex_);  // not by push(), which would throw the failure that is to be taken away
    append({.what = "reset", .work = nullptr, .event = dry, .reset = true}, lock);
  }
  dry->wait_reached();
  if (!dry->failure) return nullptr;
  dry->failure->heard.store(true);
  return dry->failure->cause;
}

void QueueStream::fail(std::shared_ptr<StreamFailure> failure) {
  std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(failure);
}

template <class F>
void QueueStream::attempt(F&& f) {
  if (failure_) return;
  try {
    f();
  } catch (const Inherited& inherited) {
    fail(inherited.failure);
  } catch (...) {
    fail(std::make_shared<StreamFailure>(std::current_exception()));
  }
}

void QueueStream::settle() {
  try {
    for (; !issued_.empty() && issued_.front().event->done(); issued_.pop_front()) {
      issued_count_ -= issued_.front().count;
      issued_launches_ -= issued_.front().launches;
    }
  } catch (const std::exception&) {  // the device has failed; the next wait for it throws
  }
}

void QueueStream::await_native(Lock& lock) {
  for (settle(); issued_launches_ >= kMostLaunches && !issued_.empty() && !failure_; settle()) {
    const auto event = issued_.front().event;
    lock.unlock();
    attempt([&] { event->synchronize(); });
    lock.lock();
  }
}

int64_t QueueStream::oldest() {
  std::lock_guard lock(mutex_);
  settle();
  if (!issued_.empty()) return issued_.front().first;
  if (unmarked_.count > 0) {
    if (!asked_ && !failure_) {
      asked_ = true;  // the next call may know more
      more_.notify_one();
    }
    return unmarked_.first;
  }
  if (running_ > 0) return running_;
  return queue_.empty() ? RunAhead::kNothing : queue_.front().number;
}

void QueueStream::reset(QueueEventState& event) {
  std::shared_ptr<StreamFailure> before;
  {
    std::lock_guard lock(mutex_);
    before = std::exchange(failure_, nullptr);
  }
  // An error of the device itself stays.
  if (native_) attempt([&] { native_->record()->synchronize(); });
  event.reach(failure_ ? failure_ : std::move(before), nullptr);
}

void QueueStream::work(const Item& item) {
  if (item.traced && device_.trace()->reserve()) {
    work_traced(item);
  } else {
    item.work(context_);
  }
}

void QueueStream::work_traced(const Item& item) {
  if (!lane_) lane_ = &device_.trace()->open(device_.label(), name_);
  if (native_) {
    auto begin = native_->stamp();
    item.work(context_);
    lane_->add(item.what, std::move(begin), native_->stamp());
  } else {
    const double begin = Trace::now();
    item.work(context_);
    lane_->add(item.what, begin, Trace::now());
  }
}

std::shared_ptr<NativeEvent> QueueStream::run_item(const Item& item) {
  std::shared_ptr<NativeEvent> here;
  if (item.reset) {
    reset(*item.event);
    return here;
  }
  if (item.event) {
    if (native_) attempt([&] { here = native_->record(); });
    item.event->reach(failure_, here);
    return here;
  }
  if (failure_) return nullptr;
  if (native_) native_->push_range(item.what.name);
  attempt([&] {
    if (native_) native_->poll();
    work(item);
  });
  if (!native_) return nullptr;
  native_->pop_range();
  if (unmarked_.count + 1 >= pieces_per_event(most_work_) ||
      unmarked_.launches + launches_of(item.what) >= kLaunchesPerEvent)
    attempt([&] { here = native_->record(); });
  return here;
}

void QueueStream::mark(std::shared_ptr<NativeEvent> here) {
  unmarked_.event = std::move(here);
  issued_.push_back(std::exchange(unmarked_, {}));
  settle();
}

void QueueStream::mark_asked(Lock& lock) {
  asked_ = false;
  if (unmarked_.count == 0) return;
  lock.unlock();
  std::shared_ptr<NativeEvent> here;
  attempt([&] { here = native_->record(); });
  lock.lock();
  if (here) mark(std::move(here));
}

void QueueStream::finished(int64_t number, std::shared_ptr<NativeEvent> here, int64_t launches) {
  running_ = 0;
  const bool marked = here != nullptr;
  if (native_) {
    if (unmarked_.count++ == 0) unmarked_.first = number;
    unmarked_.launches += launches;
    ++issued_count_;
    issued_launches_ += launches;
    if (marked) mark(std::move(here));
  }
  if (waiting_ > 0 && (marked || failure_ || held() <= most_work_ - 1 - most_work_ / 4)) room_.notify_all();
}

void QueueStream::run() {
  is_worker = true;
  if (native_) {
    attempt([&] { native_->start(); });
  } else {
    omp_set_num_threads(context_.threads);
  }
  Lock lock(mutex_);
  for (;;) {
    if (queue_.empty()) idle_.notify_all();
    more_.wait(lock, [&] { return stop_ || asked_ || (!queue_.empty() && running_ == 0); });
    if (asked_) mark_asked(lock);
    if (queue_.empty() && stop_) break;
    if (queue_.empty()) continue;
    if (native_) await_native(lock);
    Item item = std::move(queue_.front());
    queue_.pop_front();
    running_ = item.number;
    lock.unlock();
    auto here = run_item(item);
    const int64_t number = item.number, launches = launches_of(item.what);
    item = {};  // what it captured goes before it counts as done
    lock.lock();
    finished(number, std::move(here), launches);
  }
  lock.unlock();
  if (native_) native_->finish();
}

}  // namespace sherd
