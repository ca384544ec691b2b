// Device as one rank sees it: memory, kernels, streams.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <typeinfo>
#include <vector>

#include <sherd/kernels/device/allocator.h>
#include <sherd/kernels/device/device_options.h>
#include <sherd/kernels/device/pending_reads.h>
#include <sherd/kernels/device/stream.h>
#include <sherd/kernels/device/stream_list.h>

namespace sherd {

class FileMemory;
class Trace;

/// Priority among the streams of a saturated device: operations that others wait for go first.
enum class StreamPriority { normal, high };

/// One rank's device. Memory released by the host may be reused at once by work queued later on compute();
/// memory that another stream uses must be kept until compute() has waited for an event of that stream.
class Device {
 public:
  Device() = default;
  /// @throws InvalidArgument for bounds of work or bytes below 1, and for values that are not enumerators.
  explicit Device(const DeviceOptions& options);
  /// Writes the failure of a stream to stderr when it was never thrown and no other failure of this device
  /// was reported.
  virtual ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual DeviceKind kind() const { return DeviceKind::cpu; }
  /// Returns the index among the process's devices of that kind (DeviceOptions::ordinal); 0 on a CPU.
  virtual int ordinal() const { return 0; }
  /// Returns whether kernels of this device can read the other's memory.
  virtual bool reaches(const Device& other) const { return kind() == other.kind(); }
  /// Returns whether operations are counted and dropped: memory is never written, and sizes that depend on
  /// the data are predicted by the caller (kernels/device/dry/).
  virtual bool dry() const { return false; }
  /// Returns the threads that one kernel may use (CPU).
  virtual int threads() const { return 1; }
  virtual Allocator& allocator() = 0;
  /// Returns host memory that the device copies from and to at full speed (CUDA: pinned); on a CPU,
  /// allocator().
  virtual Allocator& staging() { return allocator(); }
  /// Returns memory of the host in which state rests between steps (Place::host), not under the memory limit. Kernels of the
  /// device can use it, on a GPU (pinned memory) at the rate of its link. On a CPU it is a file (DeviceOptions::offload_folder):
  /// ops::copy() reads and writes it without mapping it, everything else by its mapping.
  virtual Allocator& host_tier() { return staging(); }
  /// Returns the file that host_tier() is; null where it is memory.
  virtual FileMemory* tier_file() { return nullptr; }
  /// Reads of host_tier() by threads beside the streams.
  PendingReads& tier_reads() { return tier_reads_; }
  /// Queues a wait for those of them that are there now.
  void wait_for_tier_reads(Stream& stream);
  /// Returns the memory of data that copy_from_host has taken, until its stream has read it. Not under the
  /// memory limit;
  /// at most RunAhead::most_bytes() are live.
  virtual Allocator& copies() { return staging(); }
  /// Run-ahead of the host: bounds and statistics.
  RunAhead& run_ahead() { return run_ahead_; }
  /// All memory of the device, used or not; 0 where it shares the host's.
  virtual int64_t total_memory() const { return 0; }
  /// Memory of the device that is taken now, by whatever process and library; 0 where it shares the host's. Asks the driver:
  /// not for every step.
  virtual int64_t taken_memory() const { return 0; }
  /// Returns which kernels run on this device.
  virtual KernelSet kernel_set() const = 0;
  /// Returns the table of a family of operations, such as GemmKernels, or of a user's own (kernel_set.h). @throws NotSupported
  /// naming the family and the device when the family has no kernels for it.
  template <class Table>
  const Table& kernels() const {
    const void* own = own_kernels(typeid(Table));
    const Table* table = own ? static_cast<const Table*>(own) : kernels_of<Table>(kernel_set());
    if (!table) refuse_kernels(Table::kName);
    return *table;
  }
  /// Returns the stream that runs the model and the optimizer.
  virtual Stream& compute() = 0;
  /// For programs whose thread runs OpenMP regions of its own between operations of compute(), such as libtorch's: a second team
  /// is more threads than processors, and libgomp then puts threads to sleep after each region. From now on an operation of compute()
  /// runs on the thread that queues it, before submit() returns; not so what operations queue, and what regions do. Streams made
  /// later run theirs with one thread. No effect on a GPU.
  virtual void use_callers_team() {}
  /// Makes a further stream; it must not outlive the device.
  virtual std::unique_ptr<Stream> make_stream(std::string name,
                                              StreamPriority priority = StreamPriority::normal) = 0;
  virtual const std::string& label() const = 0;
  /// Returns all existing streams of this device.
  StreamList& streams() { return streams_; }

  /// Bytes moved by ops::copy on any stream of this device, for tests that count copies around collectives.
  int64_t copied_bytes() const { return copied_bytes_.load(std::memory_order_relaxed); }
  void count_copy(int64_t bytes) { copied_bytes_.fetch_add(bytes, std::memory_order_relaxed); }

  /// Counts the host's waits for this device (Stream::synchronize, Event::synchronize, copy_to_host), for
  /// tests that a step does not wait. On a CPU device the same calls are counted.
  int64_t host_syncs() const {
    std::lock_guard lock(host_syncs_mutex_);
    int64_t sum = 0;
    for (const auto& [thread, count] : host_syncs_) sum += count;
    return sum;
  }
  /// Waits of one thread: another one may write a checkpoint beside the step.
  int64_t host_syncs(std::thread::id thread) const {
    std::lock_guard lock(host_syncs_mutex_);
    const auto found = host_syncs_.find(thread);
    return found == host_syncs_.end() ? 0 : found->second;
  }
  void count_host_sync() {
    std::lock_guard lock(host_syncs_mutex_);
    ++host_syncs_[std::this_thread::get_id()];
  }
  /// Human-readable description: "cpu, 2 threads, kernels cpu"; "NVIDIA H200 (GPU 0)".
  virtual std::string describe() const = 0;

  /// Sets the trace that all streams of this device record into while it is switched on (Trace::set_enabled).
  /// Call it before any operation is submitted.
  void set_trace(std::shared_ptr<Trace> trace) { trace_ = std::move(trace); }
  /// Null without a trace.
  Trace* trace() const { return trace_.get(); }

  /// While on, a device with a native queue receives operations in the order of the host's calls over all its
  /// streams: submit(), record() and wait() return when their operations have been issued (not when they are
  /// done). Switching it on returns when everything queued so far has been issued. Sharded models switch it on for
  /// their first step, and an operation that may load kernels later does for itself (InOrder). No effect on a CPU.
  ///
  /// Why: loading a kernel may wait for all work of the GPU issued so far, and no other work is issued meanwhile. That
  /// work includes collectives whose peers have not issued theirs. A rank that loads has issued exactly the operations
  /// before the load in the order of its host's calls, in which all ranks make their collectives. Of the ranks that
  /// load, let A be one with the fewest collectives issued. Every other rank that loads has issued all of A's, and a
  /// rank that does not load issues them without waiting for a peer. So A's complete, and A continues.
  void issue_in_order(bool on);
  bool issues_in_order() const { return issue_in_order_.load(std::memory_order_relaxed); }
  /// Returns whether an operation of this shape was not named before; on a device without a native queue, false.
  /// @param shape what decides which kernels run it
  bool first_use(const std::vector<int64_t>& shape);

  /// Records a failure that the device's own queue does not see, such as an aborted collective. From now on
  /// every host wait for a device with a native queue throws `failure`, and so does every call that queues
  /// work. The first call wins.
  void fail(std::exception_ptr failure) noexcept {
    std::lock_guard lock(failure_mutex_);
    if (!failure_) failure_ = std::move(failure);
  }
  void rethrow_failure() const {
    std::lock_guard lock(failure_mutex_);
    if (!failure_) return;
    heard();
    std::rethrow_exception(failure_);
  }

  /// Takes over the failure of a destroyed stream that has not been thrown yet. Any thread.
  void hand_on(std::shared_ptr<StreamFailure> failure) noexcept;
  /// @throws the first failure that was handed on and not thrown yet. compute().synchronize() calls it, and
  /// so does the launcher at the end of a rank.
  void rethrow_unheard();
  /// Marks a failure of this device as reported: others that follow from it need no mention.
  void heard() const noexcept { heard_.store(true); }

 protected:
  /// A table of the given type that this device uses instead of its kernel set's; null: none. For devices that are not
  /// the library's.
  virtual const void* own_kernels(const std::type_info&) const { return nullptr; }

 private:
  [[noreturn]] void refuse_kernels(const char* family) const;

  StreamList streams_;
  RunAhead run_ahead_;
  PendingReads tier_reads_;
  std::mutex unheard_mutex_;
  std::vector<std::shared_ptr<StreamFailure>> unheard_;
  mutable std::atomic<bool> heard_{false};
  std::shared_ptr<Trace> trace_;
  std::atomic<int64_t> copied_bytes_{0};
  std::atomic<bool> issue_in_order_{false};
  std::mutex used_mutex_;
  std::set<std::vector<int64_t>> used_;
  mutable std::mutex host_syncs_mutex_;
  std::map<std::thread::id, int64_t> host_syncs_;
  mutable std::mutex failure_mutex_;
  std::exception_ptr failure_;
};

/// Scope in which a device issues in order, if `on`.
class InOrder {
 public:
  InOrder(Device& device, bool on) : device_(on && !device.issues_in_order() ? &device : nullptr) {
    if (device_ != nullptr) device_->issue_in_order(true);
  }
  ~InOrder() {
    if (device_ != nullptr) device_->issue_in_order(false);
  }
  InOrder(const InOrder&) = delete;
  InOrder& operator=(const InOrder&) = delete;

 private:
  Device* device_;
};

/// Makes the stream wait for compute(), before it uses temporaries made now: queued compute operations may
/// still read their memory.
inline void follow_compute(Stream& stream) {
  Stream& compute = stream.device().compute();
  if (&stream != &compute) stream.wait(compute.record());
}

/// @throws InvalidArgument for KernelSet::cuda, threads < 0, and as Device's constructor.
[[nodiscard]] std::shared_ptr<Device> make_cpu_device(const DeviceOptions& options = {});

/// Makes one rank's share of GPU number options.ordinal: several ranks of a process may use the same one.
/// `kernels` and `threads` are unused.
/// @throws NotCompiled without CUDA; CudaError "no CUDA device ..." when the machine has no driver or no GPU;
/// InvalidArgument when there are fewer GPUs than `ordinal` + 1, and as Device's constructor; NotSupported for
/// AttentionMethod::cudnn without cuDNN.
std::shared_ptr<Device> make_cuda_device(const DeviceOptions& options = {});
/// Returns the number of GPUs of this process, 0 without a driver; first sets CUDA_DEVICE_MAX_CONNECTIONS.
/// @throws NotCompiled.
int cuda_device_count();
/// Returns the address of a GPU on the PCI bus, "0000:1B:00.0"; "" where the driver does not tell.
std::string cuda_pci_address(int ordinal);

}  // namespace sherd
