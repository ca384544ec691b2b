#include <sherd/kernels/queue_stream.h>

#include <omp.h>

namespace sherd {

struct QueueEventState final : Event::State {
  explicit QueueEventState(Device& d) : device(d) {}

  Device& device;
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  bool reached = false;  // by the worker; the device may be behind
  std::exception_ptr failure;
  std::shared_ptr<NativeEvent> native;

  void reach(std::exception_ptr f, std::shared_ptr<NativeEvent> n) {
    {
      std::lock_guard lock(mutex);
      reached = true;
      failure = std::move(f);
      native = std::move(n);
    }
    changed.notify_all();
  }
  /// Blocks until the worker has come here; for other workers. @throws the stream's failure.
  const NativeEvent* wait_reached() const {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return reached; });
    if (failure) std::rethrow_exception(failure);
    return native.get();
  }
  bool done() const override {
    std::lock_guard lock(mutex);
    return reached && (!native || native->done());
  }
  void synchronize() const override {
    device.count_host_sync();
    if (const NativeEvent* n = wait_reached()) {
      n->synchronize();
      device.rethrow_failure();
    }
  }
};

QueueStream::QueueStream(Device& device, std::string name, int threads, std::unique_ptr<NativeQueue> native)
    : device_(device), name_(std::move(name)), native_(std::move(native)) {
  context_.threads = threads;
  if (native_) {
    context_.scratch = [this](int64_t bytes) { return native_->scratch(bytes); };
    context_.native = native_->handle();
    context_.queue = native_.get();
  } else {
    context_.scratch = [this](int64_t bytes) { return scratch(bytes); };
  }
  worker_ = std::thread([this] { run(); });
}

QueueStream::~QueueStream() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  more_.notify_one();
  worker_.join();
  device_.allocator().release(scratch_, scratch_bytes_, "kernel scratch");
}

void QueueStream::push(Item item) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(item));
  }
  more_.notify_one();
  if (!native_ || !device_.issues_in_order() || std::this_thread::get_id() == worker_.get_id()) return;
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return queue_.empty() && !busy_; });
}

void QueueStream::submit(const char* what, std::function<void(ExecutionContext&)> work) {
  const Trace* trace = device_.trace();
  push({what, std::move(work), nullptr, trace && trace->recording()});
}

Event QueueStream::record() {
  auto state = std::make_shared<QueueEventState>(device_);
  push({"event", nullptr, state});
  return Event(state);
}

void QueueStream::wait(const Event& event) {
  if (!event.state()) return;
  push({"wait",
        [state = event.state()](ExecutionContext& context) {
          // Every event with a state comes from a QueueStream: there is no other stream.
          const NativeEvent* native = static_cast<const QueueEventState&>(*state).wait_reached();
          if (native == nullptr) return;
          if (context.queue) {
            context.queue->wait(*native);
          } else {
            native->synchronize();
          }
        },
        nullptr});
}

void QueueStream::synchronize() { record().synchronize(); }

void* QueueStream::scratch(int64_t bytes) {
  if (bytes > scratch_bytes_) {
    // The host may have released blocks that work still queued here reads, so none of those will do.
    Allocator& allocator = device_.allocator();
    void* grown = allocator.allocate(bytes, "kernel scratch", true);
    allocator.release(scratch_, scratch_bytes_, "kernel scratch");
    scratch_ = grown;
    scratch_bytes_ = bytes;
  }
  return scratch_;
}

void QueueStream::finish(QueueEventState& event) {
  std::shared_ptr<NativeEvent> native;
  if (native_ && !failure_) {
    try {
      native = native_->record();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  event.reach(failure_, std::move(native));
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

void QueueStream::run() {
  if (native_) {
    try {
      native_->start();
    } catch (...) {
      failure_ = std::current_exception();
    }
  } else {
    omp_set_num_threads(context_.threads);
  }
  for (;;) {
    Item item;
    {
      std::unique_lock lock(mutex_);
      busy_ = false;
      if (queue_.empty()) idle_.notify_all();
      more_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) break;
      busy_ = true;
      item = std::move(queue_.front());
      queue_.pop_front();
    }
    if (item.event) {
      finish(*item.event);
    } else if (!failure_) {
      try {
        if (native_) {
          native_->push_range(item.what);
          native_->poll();
        }
        work(item);
      } catch (...) {
        failure_ = std::current_exception();
      }
      if (native_) native_->pop_range();
    }
  }
  if (native_) native_->finish();
}

}  // namespace sherd
