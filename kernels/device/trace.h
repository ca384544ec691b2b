// Trace of streams: records of their operations on one clock, for timelines.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <sherd/kernels/device/stream.h>

namespace sherd {

/// Name of the lane in which the adapter for libtorch records, on CPUs, the time between its calls of sherd.
inline constexpr const char* kLibtorchStream = "libtorch";

/// One operation of a stream. Times are microseconds of Trace::now().
struct TraceRecord {
  std::string device, stream, what;
  double begin = 0, end = 0;
  WorkKind kind = WorkKind::compute;
};

/// Records of the operations of all streams of a device (Device::set_trace). Waits for events are not
/// recorded. A collective begins where the stream takes it up, so that it contains the wait for its peers.
/// Memory is bounded: operations beyond `limit` records are counted, not recorded.
/// The host calls now(), set_enabled() and the readers of records; streams call the rest.
class Trace {
 public:
  static constexpr int64_t kLimit = int64_t{1} << 18;
  explicit Trace(int64_t limit = kLimit) : limit_(limit) {}

  /// Microseconds of the steady clock, which all processes of a host share.
  static double now();

  /// Sets whether operations *submitted* from now on are recorded. Default: off.
  void set_enabled(bool on) { enabled_.store(on, std::memory_order_relaxed); }
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }

  /// Returns the records, by streams in the order in which they first worked, each in the order of its
  /// operations. Streams must have been synchronised; a device's times are read here. @throws the device's
  /// failure.
  [[nodiscard]] std::vector<TraceRecord> records();
  /// Operations that the limit left out.
  int64_t left_out() const { return left_out_.load(std::memory_order_relaxed); }

  /// Reserves a record; false when the limit is reached.
  [[nodiscard]] bool reserve();
  /// The records of one stream; written by the thread that runs its operation, and by records().
  class Lane {
   public:
    Lane(std::string device, std::string stream) : device_(std::move(device)), stream_(std::move(stream)) {}
    void add(Operation what, double begin, double end);
    /// Times that the device will know. Known ones are read now and then, so that few stamps exist.
    void add(Operation what, std::shared_ptr<NativeStamp> begin, std::shared_ptr<NativeStamp> end);

   private:
    friend class Trace;
    struct Pending {
      Operation what;
      std::shared_ptr<NativeStamp> begin, end;
    };
    static constexpr size_t kPending = 128;
    void read_times(bool wait);

    std::mutex mutex_;
    const std::string device_, stream_;
    std::vector<TraceRecord> done_;
    std::deque<Pending> pending_;
  };
  /// Adds a lane, which exists as long as the trace.
  Lane& open(const std::string& device, const std::string& stream);

 private:
  const int64_t limit_;
  std::atomic<bool> enabled_{false};
  std::atomic<int64_t> used_{0}, left_out_{0};
  mutable std::mutex mutex_;
  std::deque<Lane> lanes_;
};

}  // namespace sherd
