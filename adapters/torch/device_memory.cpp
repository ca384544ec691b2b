#include <sherd/torch/device_memory.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <utility>

#include <sherd/kernels/device/error.h>

namespace sherd::torch {
namespace {

// libtorch asks one allocator per kind of device for all threads, so whose memory a thread's tensors have can only
// be known by the thread.
thread_local const std::shared_ptr<Device>* device_of_thread = nullptr;

struct Block {
  std::shared_ptr<Device> device;
  void* data;
};

void release(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  block->device->allocator().release(block->data, /*idle=*/true);  // libtorch's operations are in no stream
}

// In the place of libtorch's allocator, to which it leaves the threads without a scope.
class ByThread final : public c10::Allocator {
 public:
  explicit ByThread(c10::Allocator* before) : before_(before) {}
  c10::DataPtr allocate(size_t bytes) override {
    if (device_of_thread == nullptr) return before_->allocate(bytes);
    if (bytes == 0) return {nullptr, c10::kCPU};
    auto block = std::make_unique<Block>(Block{*device_of_thread, nullptr});
    // Fresh: it is touched at once, while work may be queued that still uses memory of sherd's.
    block->data = block->device->allocator().allocate(static_cast<int64_t>(bytes), MemoryClass::activation,
                                                      "libtorch", /*fresh=*/true);
    void* const data = block->data;
    return {data, block.release(), &release, c10::kCPU};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  c10::Allocator* const before_;
};

void install() {
  // Never taken away again: storages remember the allocator that they grow by.
  static ByThread* const installed = [] {
    auto* const by_thread = new ByThread(c10::GetCPUAllocator());
    c10::SetCPUAllocator(by_thread, /*priority=*/1);
    return by_thread;
  }();
  (void)installed;
}

}  // namespace

DeviceMemory::DeviceMemory(std::shared_ptr<Device> device)
    : device_(std::move(device)), around_(device_of_thread) {
  if (device_->kind() != DeviceKind::cpu)
    throw NotSupported("sherd::torch::DeviceMemory: libtorch's CPU tensors cannot lie in the memory of a GPU");
  install();
  device_of_thread = &device_;
}

DeviceMemory::~DeviceMemory() { device_of_thread = around_; }

}  // namespace sherd::torch
