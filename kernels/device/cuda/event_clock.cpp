#include "event_clock.h"

#include <vector>

#include <sherd/kernels/device/trace.h>

namespace sherd::cuda {
namespace {

constexpr const char* kWhat = "time of an event";

}  // namespace

/// Free events that record times.
class EventClock::Pool {
 public:
  explicit Pool(int ordinal) : ordinal_(ordinal) {}
  ~Pool() {
    cudaSetDevice(ordinal_);
    for (cudaEvent_t event : free_) cudaEventDestroy(event);
  }
  cudaEvent_t take() {
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        const cudaEvent_t event = free_.back();
        free_.pop_back();
        return event;
      }
    }
    select();
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDefault), kWhat);
    return event;
  }
  /// For threads that have selected no device yet, which would open a context on GPU 0.
  void select() const { check(cudaSetDevice(ordinal_), kWhat); }
  void give(cudaEvent_t event) {
    std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

 private:
  const int ordinal_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

struct EventClock::Base {
  explicit Base(std::shared_ptr<Pool> p) : pool(std::move(p)), event(pool->take()) {}
  ~Base() { pool->give(event); }
  Base(const Base&) = delete;

  const std::shared_ptr<Pool> pool;
  const cudaEvent_t event;
  double at = 0;
};

namespace {

template <class Base>
class Stamp final : public NativeStamp {
 public:
  Stamp(std::shared_ptr<const Base> base, cudaStream_t stream)
      : base_(std::move(base)), event_(base_->pool->take()) {
    const cudaError_t result = cudaEventRecord(event_, stream);
    if (result == cudaSuccess) return;
    base_->pool->give(event_);
    check(result, kWhat);
  }
  ~Stamp() override { base_->pool->give(event_); }
  bool done() const override {
    base_->pool->select();
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) {
      cudaGetLastError();  // no error to be found by the next launch
      return false;
    }
    check(state, kWhat);
    return true;
  }
  void synchronize() const override {
    base_->pool->select();
    check(cudaEventSynchronize(event_), kWhat);
  }
  double microseconds() const override {
    synchronize();
    float ms = 0;
    check(cudaEventElapsedTime(&ms, base_->event, event_), kWhat);
    return base_->at + 1e3 * static_cast<double>(ms);
  }

 private:
  const std::shared_ptr<const Base> base_;
  const cudaEvent_t event_;
};

}  // namespace

EventClock::EventClock(int ordinal) : ordinal_(ordinal), pool_(std::make_shared<Pool>(ordinal)) {}

EventClock::~EventClock() {
  if (!stream_) return;
  cudaSetDevice(ordinal_);
  cudaStreamDestroy(stream_);
}

std::shared_ptr<const EventClock::Base> EventClock::base() {
  std::lock_guard lock(mutex_);
  if (base_ && Trace::now() - base_->at < kBaseAge) return base_;
  check(cudaSetDevice(ordinal_), kWhat);
  if (!stream_) check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), kWhat);
  // On a stream of its own an event is reached at once. The host's clock is read before and after; of several
  // attempts the one with the least time between says most.
  double least = 0;
  std::shared_ptr<Base> best;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const auto made = std::make_shared<Base>(pool_);
    const double before = Trace::now();
    check(cudaEventRecord(made->event, stream_), kWhat);
    check(cudaEventSynchronize(made->event), kWhat);
    const double after = Trace::now();
    made->at = (before + after) / 2;
    if (best && after - before >= least) continue;
    least = after - before;
    best = made;
  }
  return base_ = best;
}

std::shared_ptr<NativeStamp> EventClock::stamp(cudaStream_t stream) {
  return std::make_shared<Stamp<Base>>(base(), stream);
}

}  // namespace sherd::cuda
