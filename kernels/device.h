// A device as one rank sees it: memory, kernels, streams.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include <sherd/kernels/allocator.h>
#include <sherd/kernels/stream.h>

namespace sherd {

struct DeviceOptions {
  /// Names the owner in messages, e.g. "rank 2".
  std::string label = "rank 0";
  /// Threads one kernel may use.
  int threads = 1;
  /// "cpu" (vectorised, oneDNN) or "reference" (slow and obvious).
  std::string kernels = "cpu";
  /// Largest number of live bytes; 0 = no limit.
  int64_t memory_limit = 0;
};

/// One rank's device. Memory released by the host may be reused at once by work queued later on compute();
/// memory that another stream uses must be kept until compute() has waited for an event of that stream.
class Device {
 public:
  virtual ~Device() = default;
  virtual Allocator& allocator() = 0;
  virtual const KernelTable& kernels() const = 0;
  /// The stream that runs the model and the optimizer.
  virtual Stream& compute() = 0;
  /// A further stream; it must not outlive the device.
  virtual std::unique_ptr<Stream> make_stream(std::string name) = 0;
  virtual const std::string& label() const = 0;

  /// Bytes moved by ops::copy on any stream of this device, for tests that count copies around collectives.
  int64_t copied_bytes() const { return copied_bytes_.load(std::memory_order_relaxed); }
  void count_copy(int64_t bytes) { copied_bytes_.fetch_add(bytes, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> copied_bytes_{0};
};

/// Must come before a side stream uses temporaries made now: their memory may still be read by queued compute
/// work.
inline void follow_compute(Stream& stream) {
  Stream& compute = stream.device().compute();
  if (&stream != &compute) stream.wait(compute.record());
}

/// @throws InvalidArgument for unknown kernels or threads < 1.
std::shared_ptr<Device> make_cpu_device(const DeviceOptions& options = {});

}  // namespace sherd
