// The CPU's stream: a worker thread with a queue. Private to kernels/.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include <sherd/kernels/tensor.h>

namespace sherd {

class CpuStream final : public Stream {
 public:
  CpuStream(Device& device, std::string name, int threads);
  /// Runs what is queued, then joins.
  ~CpuStream() override;

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
    std::shared_ptr<struct CpuEventState> event;  // set for records, which complete even after a failure
  };
  void push(Item item);
  void run();
  void* scratch(int64_t bytes);

  Device& device_;
  std::string name_;
  ExecutionContext context_;
  void* scratch_ = nullptr;
  int64_t scratch_bytes_ = 0;
  std::mutex mutex_;
  std::condition_variable more_;
  std::deque<Item> queue_;
  bool stop_ = false;
  std::exception_ptr failure_;  // worker thread only
  std::thread worker_;
};

}  // namespace sherd
