#include <sherd/kernels/cpu_stream.h>

#include <omp.h>

namespace sherd {

struct CpuEventState final : Event::State {
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  bool complete = false;
  std::exception_ptr failure;

  void finish(std::exception_ptr f) {
    {
      std::lock_guard lock(mutex);
      complete = true;
      failure = std::move(f);
    }
    changed.notify_all();
  }
  bool done() const override {
    std::lock_guard lock(mutex);
    return complete;
  }
  void synchronize() const override {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return complete; });
    if (failure) std::rethrow_exception(failure);
  }
};

CpuStream::CpuStream(Device& device, std::string name, int threads)
    : device_(device), name_(std::move(name)) {
  context_.threads = threads;
  context_.scratch = [this](int64_t bytes) { return scratch(bytes); };
  worker_ = std::thread([this] { run(); });
}

CpuStream::~CpuStream() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  more_.notify_one();
  worker_.join();
  device_.allocator().release(scratch_, scratch_bytes_, "kernel scratch");
}

void CpuStream::push(Item item) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(item));
  }
  more_.notify_one();
}

void CpuStream::submit(const char* what, std::function<void(ExecutionContext&)> work) {
  push({what, std::move(work), nullptr});
}

Event CpuStream::record() {
  auto state = std::make_shared<CpuEventState>();
  push({"event", nullptr, state});
  return Event(state);
}

void CpuStream::wait(const Event& event) {
  if (!event.state()) return;
  push({"wait", [state = event.state()](ExecutionContext&) { state->synchronize(); }, nullptr});
}

void CpuStream::synchronize() { record().synchronize(); }

void* CpuStream::scratch(int64_t bytes) {
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

void CpuStream::run() {
  omp_set_num_threads(context_.threads);
  for (;;) {
    Item item;
    {
      std::unique_lock lock(mutex_);
      more_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      item = std::move(queue_.front());
      queue_.pop_front();
    }
    if (item.event) {
      item.event->finish(failure_);
    } else if (!failure_) {
      try {
        item.work(context_);
      } catch (...) {
        failure_ = std::current_exception();
      }
    }
  }
}

}  // namespace sherd
