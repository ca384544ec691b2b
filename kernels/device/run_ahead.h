// Run-ahead of the host before its device: the bound, the statistics, and completed operations.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>

namespace sherd {

/// Shared by the streams of a device. Thread-safe.
///
/// Two things are bounded: operations that one stream holds and that are not done, and bytes that
/// copy_from_host has taken and that are not on the device yet. A host thread that wants more waits.
///
/// Why waiting cannot deadlock. An operation needs only what was queued before it: earlier operations of its
/// stream, and events that were recorded before wait() was called. Only collectives need more: their peers.
/// All ranks issue their collectives in one order. Take the first collective of that order that is not done
/// (or, if none is queued, the first operation). Everything before it on any rank is done or runs without
/// peers, so every rank that has queued it reaches it. A rank that has not queued it cannot wait for room for
/// ever: a full stream of that rank holds only earlier operations, which complete. Programs owe two things:
/// events are recorded before they are waited for, and operations do not wait for what the host does only
/// after queueing more. A thread that runs an operation of the stream never waits. Bounds hold per stream, however small: the
/// argument needs room for one operation.
class RunAhead {
 public:
  static constexpr int64_t kWork = 16'384;
  static constexpr int64_t kBytes = int64_t{256} << 20;

  /// @throws InvalidArgument naming `label` when a bound is below 1.
  explicit RunAhead(int64_t most_work = kWork, int64_t most_bytes = kBytes, const std::string& label = "");
  RunAhead(const RunAhead&) = delete;
  RunAhead& operator=(const RunAhead&) = delete;

  /// The bounds: operations of one stream; bytes in transfer from the host.
  int64_t most_work() const { return most_work_; }
  int64_t most_bytes() const { return most_bytes_; }

  /// Largest number of operations that any stream has held at once, and of bytes in transfer; never above the
  /// bounds, except for one copy that is larger than most_bytes(), which is transferred alone.
  int64_t peak_work() const { return peak_work_.load(std::memory_order_relaxed); }
  int64_t peak_bytes() const { return peak_bytes_.load(std::memory_order_relaxed); }
  /// Number of times that a host thread waited for room.
  int64_t waits() const { return waits_.load(std::memory_order_relaxed); }

  /// A number larger than all before, for an operation that is queued now.
  int64_t next() { return queued_.fetch_add(1) + 1; }
  /// The number of the operation queued last on any stream.
  int64_t queued() const { return queued_.load(); }
  /// Returns a number up to which the operations of every stream are done. Asks the streams.
  int64_t done() const;

  /// Count bytes copied from the host: take() waits for room; give() is called when the device has them.
  void take(int64_t bytes);
  void give(int64_t bytes) noexcept;

  // For streams.
  /// `oldest` returns the number of the stream's first operation that is not done; kNothing without one.
  /// In force until the returned object is destroyed.
  static constexpr int64_t kNothing = INT64_MAX;
  [[nodiscard]] std::shared_ptr<void> join(std::function<int64_t()> oldest);
  void note_work(int64_t held) noexcept;
  void count_wait() noexcept { waits_.fetch_add(1, std::memory_order_relaxed); }

 private:
  const int64_t most_work_, most_bytes_;
  std::atomic<int64_t> peak_work_{0}, peak_bytes_{0}, waits_{0}, queued_{0};
  mutable std::mutex streams_mutex_;
  std::list<std::function<int64_t()>> streams_;
  std::mutex bytes_mutex_;
  std::condition_variable room_;
  int64_t bytes_ = 0;
};

}  // namespace sherd
