// Memory held by libtorch.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <memory>

namespace torch_test {

/// Counts the bytes that this thread's operations take from libtorch's CPU allocator and give back, from the
/// constructor on. (sherd's memory comes from elsewhere.)
class MemoryMeter {
 public:
  MemoryMeter() : count_(std::make_shared<Count>()), heard_(c10::DebugInfoKind::PROFILER_STATE, count_) {}
  int64_t held() const { return count_->held; }
  int64_t peak() const { return count_->peak; }

 private:
  struct Count final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
      held += bytes;
      peak = std::max(peak, held);
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t held = 0, peak = 0;
  };
  std::shared_ptr<Count> count_;
  c10::DebugInfoGuard heard_;
};

}  // namespace torch_test
