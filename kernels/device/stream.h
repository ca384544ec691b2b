// Streams and events: ordered queues of device work, with the meaning they have in CUDA, on every device.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include <sherd/kernels/device/dtype.h>
#include <sherd/kernels/device/operation.h>

namespace sherd {

class Device;

/// Point in the order of a device's own queue.
class NativeEvent {
 public:
  virtual ~NativeEvent() = default;
  virtual bool done() const = 0;
  /// Blocks the calling thread. @throws the device's failure.
  virtual void synchronize() const = 0;
};

/// Native event with the time at which it was reached.
class NativeStamp : public NativeEvent {
 public:
  /// Microseconds of Trace::now(). Blocks the calling thread. @throws the device's failure.
  virtual double microseconds() const = 0;
};

/// Queue of a device that runs beside the host, such as a CUDA stream. It runs what a stream's worker issues,
/// in order. Called by that worker alone, except where noted.
class NativeQueue {
 public:
  virtual ~NativeQueue() = default;
  /// Called before the first operation, on the worker.
  virtual void start() = 0;
  /// Called before each operation. @throws a failure that the device has found in earlier operations.
  virtual void poll() {}
  /// Called after the last operation, on the worker: waits for the device. Never throws.
  virtual void finish() noexcept = 0;
  /// cudaStream_t. Any thread.
  virtual void* handle() const = 0;
  [[nodiscard]] virtual std::shared_ptr<NativeEvent> record() = 0;
  /// Records an event with a time, for traces.
  [[nodiscard]] virtual std::shared_ptr<NativeStamp> stamp() = 0;
  /// Operations issued from push_range to pop_range appear under that name in the device's profilers.
  virtual void push_range(const char*) noexcept {}
  virtual void pop_range() noexcept {}
  /// Makes later operations wait on the device for `event`, of any queue of any device.
  virtual void wait(const NativeEvent& event) = 0;
  /// Keeps `object` alive until everything issued so far is done.
  virtual void keep(std::shared_ptr<const void> object) = 0;
  /// Runs `f` on a thread of the device once everything issued so far is done; later operations wait for it.
  /// `f` makes no calls to the device and does not throw.
  virtual void after(std::function<void()> f) = 0;
  /// Grow-only device memory. Growing waits for the device.
  virtual void* scratch(int64_t bytes) = 0;
};

/// Context of an operation that runs on its stream. On a device with a native queue operations only *issue*:
/// memory they name is touched later, in the order of the queue.
struct ExecutionContext {
  /// Threads a kernel may use (CPU).
  int threads = 1;
  /// Grow-only scratch memory of the stream, valid until the running operation returns (native queue: for
  /// what this operation issues).
  std::function<void*(int64_t bytes)> scratch;
  /// Native queue (cudaStream_t) on devices that have one.
  void* native = nullptr;
  /// The queue's interface; null on devices whose operations are done when they return.
  NativeQueue* queue = nullptr;

  /// Keeps `object` alive until everything issued so far is done. An operation that holds tensors needs it,
  /// because its captures are destroyed when it returns.
  void keep(std::shared_ptr<const void> object) const {
    if (queue) queue->keep(std::move(object));
  }
  /// Runs `f` on the host when everything issued so far is done, before later operations; see
  /// NativeQueue::after.
  void after(std::function<void()> f) const {
    if (queue) {
      queue->after(std::move(f));
    } else {
      f();
    }
  }
};

/// Completion of everything that was queued on a stream when the event was recorded.
/// A cheap handle; a default-constructed event counts as complete.
class [[nodiscard]] Event {
 public:
  struct State {
    virtual ~State() = default;
    virtual bool done() const = 0;
    virtual void synchronize() const = 0;
  };
  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  bool done() const { return !state_ || state_->done(); }
  /// Blocks the calling thread. @throws the failure of the recording stream, if it failed before the event.
  void synchronize() const {
    if (state_) state_->synchronize();
  }
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

/// Work of one operation, for devices that predict instead of computing (kernels/device/dry/).
struct Work {
  double flops = 0;
  int64_t bytes = 0;         // read and written
  int64_t host_bytes = 0;    // moved between device and host
  int64_t scratch = 0;       // ExecutionContext::scratch that the device's kernel requests
  DType dtype = DType::f32;  // of the factors of products
  /// Width by which the rate of its kind differs: of attention a head's; of a norm its rows'; of a product its least dimension, 1 where
  /// rows do not begin at multiples of 16 bytes; of Newton-Schulz as its work_of() says. 0: wide.
  int64_t width = 0;
  int64_t times = 1;  // Stream::repeat()
};

/// Failure of a stream. Streams that wait for a failed one share its failure.
struct StreamFailure {
  explicit StreamFailure(std::exception_ptr c) : cause(std::move(c)) {}
  const std::exception_ptr cause;
  /// Set when it is thrown at a host thread.
  std::atomic<bool> heard{false};

  [[noreturn]] void rethrow() {
    heard.store(true);
    std::rethrow_exception(cause);
  }
};

/// An ordered queue of work on one device. Work of one stream runs in submission order; work of different
/// streams runs concurrently unless ordered by record()/wait(). submit/record/wait are called by one host
/// thread at a time.
///
/// Failure: once an operation throws, the stream drops everything after it, its later events fail with the
/// same exception, and streams waiting for those events fail too. A failed stream stays failed (but see
/// reset_failure()): submit(), record() and wait() rethrow from the moment the host can know, synchronize()
/// after everything queued has been run or dropped. A host thread that continues to issue therefore gets the
/// failure at its next call on that stream. Where a native queue runs the operations, a failure of the device
/// itself is known once the queue has reached it (NativeQueue::poll checks before each operation). The
/// failure of an aborted collective is thrown by every stream of the device (Device::fail). A stream that is
/// destroyed with a failure not thrown yet hands it on to its device, whose compute().synchronize() throws it
/// (Device::hand_on). Destructors that queue work must expect these throws.
///
/// Back-pressure: a stream takes no more than RunAhead::most_work() operations (submit, record and wait are
/// one each) that are not done; a host thread that queues more waits. See RunAhead for why that cannot
/// deadlock.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Queues `work`; `what` names it in traces and messages, and its kind sorts it there. Operations must not queue on
  /// other streams: a worker would wait for room that others need it for.
  virtual void submit(Operation what, std::function<void(ExecutionContext&)> work) = 0;
  /// For dry devices (Device::dry()): announces the work of the operation that is submitted next, and that each
  /// operation from now on stands for so many of its size.
  virtual void expect(const Work&) {}
  virtual void repeat(int64_t) {}
  virtual Event record() = 0;
  /// Makes later operations of this stream wait for `event`.
  virtual void wait(const Event& event) = 0;
  /// Blocks the host until all queued operations are done. @throws the stream's first failure; compute()'s
  /// also throws failures given to Device::hand_on.
  virtual void synchronize() = 0;
  /// Blocks the host until all queued operations have been issued to the native queue; without one, until they are
  /// done.
  virtual void wait_issued() = 0;
  /// Blocks the host until all queued operations are done or dropped, and lets a failed stream work again;
  /// returns its failure, or null. Events recorded before keep their failure. For StreamList::reset():
  /// resetting one stream alone leaves the streams that used its results failed.
  virtual std::exception_ptr reset_failure() = 0;
  virtual Device& device() const = 0;
  virtual const std::string& name() const = 0;
};

}  // namespace sherd
