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
/// Two things are bounded: pieces of work that a stream holds and that are not done, and bytes that
/// copy_from_host has taken and that are not on the device yet. A host thread that wants more waits.
///
/// Why waiting cannot deadlock. Everything that a piece of work needs was queued before it: the work before it
/// on its stream, and the events it waits for, which were recorded before wait() was called. Only collectives
/// need more, namely that their peers come; all ranks issue their collectives in one order. Take the first
/// collective of that order that is not done (or, if none is queued, the first piece of work). All that comes
/// before it on any rank is done or runs without peers, so every rank that has queued it comes to it; and a
/// rank that has not queued it cannot be waiting for room for ever, for a full stream of its holds only
/// earlier work, which gets done. This asks of programs what they owe anyway: events are recorded before they
/// are waited for, and work does not wait for what the host does only after queueing more. A stream's own
/// worker never waits. Bounds hold per stream, however small, because the argument needs room for one piece.
class RunAhead {
 public:
  static constexpr int64_t kWork = 16'384;
  static constexpr int64_t kBytes = int64_t{256} << 20;

  /// @throws InvalidArgument naming `label` when a bound is below 1.
  explicit RunAhead(int64_t most_work = kWork, int64_t most_bytes = kBytes, const std::string& label = "");
  RunAhead(const RunAhead&) = delete;
  RunAhead& operator=(const RunAhead&) = delete;

  /// The bounds: pieces of work of one stream; bytes on their way from the host.
  int64_t most_work() const { return most_work_; }
  int64_t most_bytes() const { return most_bytes_; }

  /// The most that any stream has held at once, and the most bytes that were under way; never above the
  /// bounds, but for one copy that is larger than most_bytes(), which goes alone.
  int64_t peak_work() const { return peak_work_.load(std::memory_order_relaxed); }
  int64_t peak_bytes() const { return peak_bytes_.load(std::memory_order_relaxed); }
  /// How often a host thread waited for room.
  int64_t waits() const { return waits_.load(std::memory_order_relaxed); }

  /// A number larger than all before, for a piece of work that is queued now.
  int64_t next() { return queued_.fetch_add(1) + 1; }
  /// Of the piece of work queued last on any stream.
  int64_t queued() const { return queued_.load(); }
  /// All work with this number and those before it is done, on every stream. Asks the streams.
  int64_t done() const;

  /// Bytes that are copied from the host: take() waits for room, give() when the device has them.
  void take(int64_t bytes);
  void give(int64_t bytes) noexcept;

  // For streams.
  /// `oldest` returns the number of the stream's first piece of work that is not done; kNothing without one.
  /// In force until the returned object goes.
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
