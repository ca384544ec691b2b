// Stream of every device: a worker thread with a queue, which runs operations (CPU) or issues them to the
// device's own queue (CUDA). Private to kernels/.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include <sherd/kernels/device/detail/stream_scratch.h>
#include <sherd/kernels/device/tensor.h>
#include <sherd/kernels/device/trace.h>

namespace sherd {

class QueueStream final : public Stream {
 public:
  /// Without `native` the worker itself runs operations, with `threads` threads.
  QueueStream(Device& device, std::string name, int threads, std::unique_ptr<NativeQueue> native = nullptr);
  /// Runs what is queued, waits for the device, then joins. Hands an unreported failure on to the device.
  ~QueueStream() override;

  void submit(Operation what, std::function<void(ExecutionContext&)> work) override;
  Event record() override;
  void wait(const Event& event) override;
  void synchronize() override;
  void wait_issued() override;
  std::exception_ptr reset_failure() override;
  Device& device() const override { return device_; }
  const std::string& name() const override { return name_; }
  /// From now on a thread that queues an operation runs it itself, when earlier ones are done (Device::use_callers_team). The
  /// worker keeps what operations queue, and events. Not for streams with a native queue.
  void run_on_callers();

 private:
  struct Item {
    Operation what;
    std::function<void(ExecutionContext&)> work;
    std::shared_ptr<struct QueueEventState> event;  // set for records, which complete even after a failure
    bool traced = false;
    int64_t number = 0;  // of RunAhead
    bool reset = false;  // of an event: it takes the failure with it
  };
  /// Operations given to the native queue, up to an event of it.
  struct Issued {
    int64_t first = 0;  // number of the first piece
    int64_t count = 0;
    int64_t launches = 0;  // about as many
    std::shared_ptr<NativeEvent> event;
  };
  using Lock = std::unique_lock<std::mutex>;

  /// Returns whether all that was queued is done, on a stream that has not failed: then no event needs the worker, whose wake
  /// costs two context switches. False on a device with a native queue, which may be behind.
  bool idle();
  /// Runs the item on this thread; the stream is idle.
  void run_here(Item item, Lock& lock);
  /// Returns whether this thread runs an operation of the stream. Under mutex_.
  bool inside() const;
  /// Waits for room. @throws the stream's failure.
  void push(Item item);
  void append(Item item, Lock& lock);
  void wait_issued(Lock& lock);
  void wait_for_room(Lock& lock);
  void rethrow_failure(Lock& lock);
  /// Operations that are queued, or issued and not known to be done. Under mutex_.
  int64_t held() const { return static_cast<int64_t>(queue_.size()) + (running_ > 0) + issued_count_; }
  /// Removes operations that the native queue has completed. Under mutex_.
  void settle();
  /// Waits until the native queue takes one more operation without blocking the thread that issues it.
  void await_native(Lock& lock);
  /// Number of the first operation that is not done, or RunAhead::kNothing.
  int64_t oldest();

  void run();
  /// Returns the native event that covers the item, if one was recorded.
  std::shared_ptr<NativeEvent> run_item(const Item& item);
  /// Records that `here` covers what was issued. Under mutex_.
  void mark(std::shared_ptr<NativeEvent> here);
  /// The same with an event recorded now.
  void mark_asked(Lock& lock);
  /// Under mutex_.
  void finished(int64_t number, std::shared_ptr<NativeEvent> here, int64_t launches = 1);
  /// Takes the failure with it.
  void reset(QueueEventState& event);
  void work(const Item& item);
  void work_traced(const Item& item);
  /// Runs f unless the stream has failed; an exception becomes the stream's failure.
  template <class F>
  void attempt(F&& f);
  void fail(std::shared_ptr<StreamFailure> failure);

  Device& device_;
  std::string name_;
  ExecutionContext context_;
  std::unique_ptr<NativeQueue> native_;
  const int64_t most_work_;
  StreamScratch scratch_;
  std::mutex mutex_;
  std::condition_variable more_, idle_, room_;
  std::deque<Item> queue_;
  bool stop_ = false;
  bool on_callers_ = false;
  std::thread::id caller_;  // that runs an operation
  bool asked_ = false;      // how far the device is, with unmarked work
  int64_t running_ = 0;     // number of the item that the worker, or a caller, has
  int waiting_ = 0;         // threads in wait_for_room()
  std::deque<Issued> issued_;
  int64_t issued_count_ = 0;                // of issued_ and unmarked_
  int64_t issued_launches_ = 0;             // likewise
  Issued unmarked_;                         // issued after the last event of issued_
  std::shared_ptr<StreamFailure> failure_;  // written under mutex_, by the thread that has the item
  Trace::Lane* lane_ = nullptr;             // of the thread that has the item
  std::thread worker_;
  std::shared_ptr<void> joined_;  // to RunAhead; goes first
};

}  // namespace sherd
