// A device as one rank sees it: memory, kernels, streams.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <sherd/kernels/allocator.h>
#include <sherd/kernels/stream.h>

namespace sherd {

class Trace;

enum class DeviceKind { cpu, cuda };

struct DeviceOptions {
  /// Names the owner in messages, e.g. "rank 2".
  std::string label = "rank 0";
  /// Threads one kernel may use.
  int threads = 1;
  /// "cpu" (vectorised, oneDNN) or "reference" (slow and obvious).
  std::string kernels = "cpu";
  /// Largest number of live bytes; 0 = no limit.
  int64_t memory_limit = 0;
  /// Which GPU of the process (CUDA).
  int ordinal = 0;
  /// CUDA: products of f32 matrices in tf32 (10 bits of mantissa, several times faster) instead of f32.
  bool tf32 = false;
  /// CUDA: how Newton-Schulz forms symmetric products in 16 bits: "blocks" (by cuBLASLt), or "hopper", a
  /// kernel for compute capability 9.0 that does half the work but has never run on a GPU.
  std::string symmetric_products = "blocks";
};

/// Order among the streams of a device that wants to run more than it can: what others wait for goes first.
enum class StreamPriority { normal, high };

/// One rank's device. Memory released by the host may be reused at once by work queued later on compute();
/// memory that another stream uses must be kept until compute() has waited for an event of that stream.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const { return DeviceKind::cpu; }
  /// Whether kernels of this device can read the other's memory.
  virtual bool reaches(const Device& other) const { return kind() == other.kind(); }
  virtual Allocator& allocator() = 0;
  /// Host memory that the device copies from and to at full speed (CUDA: pinned); on a CPU, allocator().
  virtual Allocator& staging() { return allocator(); }
  virtual const KernelTable& kernels() const = 0;
  /// The stream that runs the model and the optimizer.
  virtual Stream& compute() = 0;
  /// A further stream; it must not outlive the device.
  virtual std::unique_ptr<Stream> make_stream(std::string name,
                                              StreamPriority priority = StreamPriority::normal) = 0;
  virtual const std::string& label() const = 0;

  /// Bytes moved by ops::copy on any stream of this device, for tests that count copies around collectives.
  int64_t copied_bytes() const { return copied_bytes_.load(std::memory_order_relaxed); }
  void count_copy(int64_t bytes) { copied_bytes_.fetch_add(bytes, std::memory_order_relaxed); }

  /// How often host threads waited for this device (Stream::synchronize, Event::synchronize, copy_to_host), for
  /// tests that a step waits for nothing. On a CPU device the same calls are counted.
  int64_t host_syncs() const {
    std::lock_guard lock(host_syncs_mutex_);
    int64_t sum = 0;
    for (const auto& [thread, count] : host_syncs_) sum += count;
    return sum;
  }
  /// Those of one thread: a checkpoint may be written by another one beside the step.
  int64_t host_syncs(std::thread::id thread) const {
    std::lock_guard lock(host_syncs_mutex_);
    const auto found = host_syncs_.find(thread);
    return found == host_syncs_.end() ? 0 : found->second;
  }
  void count_host_sync() {
    std::lock_guard lock(host_syncs_mutex_);
    ++host_syncs_[std::this_thread::get_id()];
  }
  /// What it is, for people: "cpu, 2 threads, kernels cpu"; "NVIDIA H200 (GPU 0)".
  virtual std::string describe() const = 0;

  /// Where all streams of this device record their work while it is switched on (Trace::record). Before any
  /// work is submitted.
  void set_trace(std::shared_ptr<Trace> trace) { trace_ = std::move(trace); }
  /// Null when there is none.
  Trace* trace() const { return trace_.get(); }

  /// While it is on, a device with a native queue is given work in the order of the host's calls over all its
  /// streams: submit(), record() and wait() return when their work has been issued (not when it is done). A
  /// kernel's first use may wait for all that was issued before it, collectives of which peers have not come
  /// yet included; as all ranks issue in one order, those peers come. Sharded models switch it on for their
  /// first step. No effect on a CPU. Any thread.
  void issue_in_order(bool on) { issue_in_order_.store(on, std::memory_order_relaxed); }
  bool issues_in_order() const { return issue_in_order_.load(std::memory_order_relaxed); }

  /// For what the device's own queue does not see, such as a collective that was given up: from now on no
  /// wait of the host for a device with a native queue returns; each throws `failure`. The first call wins.
  void fail(std::exception_ptr failure) noexcept {
    std::lock_guard lock(failure_mutex_);
    if (!failure_) failure_ = std::move(failure);
  }
  void rethrow_failure() const {
    std::lock_guard lock(failure_mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::shared_ptr<Trace> trace_;
  std::atomic<int64_t> copied_bytes_{0};
  std::atomic<bool> issue_in_order_{false};
  mutable std::mutex host_syncs_mutex_;
  std::map<std::thread::id, int64_t> host_syncs_;
  mutable std::mutex failure_mutex_;
  std::exception_ptr failure_;
};

/// Must come before a side stream uses temporaries made now: their memory may still be read by queued compute
/// work.
inline void follow_compute(Stream& stream) {
  Stream& compute = stream.device().compute();
  if (&stream != &compute) stream.wait(compute.record());
}

/// @throws InvalidArgument for unknown kernels or threads < 1.
std::shared_ptr<Device> make_cpu_device(const DeviceOptions& options = {});

/// One rank's share of GPU number options.ordinal: several ranks of a process may use the same one. `kernels`
/// and `threads` do not matter.
/// @throws NotCompiled without CUDA; CudaError "no CUDA device ..." when the machine has no driver or no GPU;
/// InvalidArgument when there are fewer GPUs than `ordinal` + 1, or for unknown symmetric_products;
/// NotSupported for "hopper" on another chip.
std::shared_ptr<Device> make_cuda_device(const DeviceOptions& options = {});
/// GPUs of this process, 0 without a driver; first sets CUDA_DEVICE_MAX_CONNECTIONS. @throws NotCompiled.
int cuda_device_count();

}  // namespace sherd
