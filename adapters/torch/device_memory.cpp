#include <sherd/torch/device_memory.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <mutex>
#include <unordered_map>
#include <utility>

#include <sherd/base/error.h>

namespace sherd::torch {
namespace {

// libtorch has one allocator per kind of device for all threads. Only the thread can tell whose memory its
// tensors have.
thread_local const std::shared_ptr<Device>* device_of_thread = nullptr;

// Replaces libtorch's allocator; threads without a scope still use that one.
class ByThread final : public c10::Allocator {
 public:
  /// Returns the process's allocator. The first call installs it and nothing removes it: storages keep the
  /// allocator that they grow by.
  static ByThread& installed() {
    static ByThread* const one = [] {
      auto* const by_thread = new ByThread(c10::GetCPUAllocator());
      c10::SetCPUAllocator(by_thread, /*priority=*/1);
      return by_thread;
    }();
    return *one;
  }

  c10::DataPtr allocate(size_t bytes) override {
    if (device_of_thread == nullptr) return before_->allocate(bytes);
    if (bytes == 0) return {nullptr, c10::kCPU};
    const std::shared_ptr<Device>& device = *device_of_thread;
    // Fresh: it is written at once, while queued operations may still use freed memory of sherd's.
    void* const data =
        device->allocator().allocate(static_cast<int64_t>(bytes), MemoryClass::activation, "libtorch",
                                     /*fresh=*/true);
    try {
      const std::lock_guard lock(mutex_);
      devices_.emplace(data, device);
    } catch (...) {
      device->allocator().release(data, true);
      throw;
    }
    return {data, data, &release, c10::kCPU};
  }
  /// Needed for oneDNN, which allocates memory without a tensor and frees it by its address alone.
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  explicit ByThread(c10::Allocator* before) : before_(before) {}

  static void release(void* data) {
    ByThread& self = installed();
    std::shared_ptr<Device> device;  // released after the lock: it may be the last reference
    {
      const std::lock_guard lock(self.mutex_);
      if (auto found = self.devices_.extract(data)) device = std::move(found.mapped());
    }
    if (device) {
      device->allocator().release(data, /*idle=*/true);  // libtorch's operations are in no stream
    } else if (data != nullptr) {
      self.before_->raw_deleter()(data);
    }
  }

  c10::Allocator* const before_;
  std::mutex mutex_;
  std::unordered_map<void*, std::shared_ptr<Device>> devices_;  // owner of each block
};

}  // namespace

DeviceMemory::DeviceMemory(std::shared_ptr<Device> device)
    : device_(std::move(device)), around_(device_of_thread) {
  if (device_->kind() != DeviceKind::cpu)
    throw NotSupported(
        "sherd::torch::DeviceMemory: it is libtorch's memory on the CPU that it counts; what libtorch holds "
        "on a GPU is its "
        "own caching allocator's, beside sherd's memory and its limit: leave the scope out where ranks "
        "compute on GPUs");
  ByThread::installed();
  device_of_thread = &device_;
}

DeviceMemory::~DeviceMemory() { device_of_thread = around_; }

}  // namespace sherd::torch
