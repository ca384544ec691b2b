// The stream of every device: a worker thread with a queue, which runs the work (CPU) or issues it to the
// device's own queue (CUDA). Private to kernels/.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include <sherd/kernels/tensor.h>
#include <sherd/kernels/trace.h>

namespace sherd {

class QueueStream final : public Stream {
 public:
  /// Without `native` the worker itself computes, with `threads` threads.
  QueueStream(Device& device, std::string name, int threads, std::unique_ptr<NativeQueue> native = nullptr);
  /// Runs what is queued, waits for the device, then joins.
  ~QueueStream() override;

  void submit(const char* what, std::function<void(ExecutionContext&)> work) override;
  Event record() override;
  void wait(const Event& event) override;
  void synchronize() override;
  Device& device() const override { return device_; }
  const std::string& name() const override { return name_; }

 private:
  struct Item {
    const char* what;
    std::function<void(ExecutionContext&)> work;
    std::shared_ptr<struct QueueEventState> event;  // set for records, which complete even after a failure
    bool traced = false;
  };
  void push(Item item);
  void run();
  void finish(QueueEventState& event);
  void work(const Item& item);
  void work_traced(const Item& item);
  void* scratch(int64_t bytes);

  Device& device_;
  std::string name_;
  ExecutionContext context_;
  std::unique_ptr<NativeQueue> native_;
  void* scratch_ = nullptr;
  int64_t scratch_bytes_ = 0;
  std::mutex mutex_;
  std::condition_variable more_, idle_;
  std::deque<Item> queue_;
  bool stop_ = false, busy_ = false;
  std::exception_ptr failure_;   // worker thread only
  Trace::Lane* lane_ = nullptr;  // likewise
  std::thread worker_;
};

}  // namespace sherd
