// Pooling allocator with named allocations and a limit.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace sherd {

/// One line of the memory table.
struct MemoryLine {
  std::string name;
  int64_t bytes = 0;       // live now
  int64_t peak_bytes = 0;  // largest `bytes` ever was
  int64_t peak_count = 0;  // largest number of live allocations of this name
};

/// Where an allocator gets its blocks from. Thread-safe.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// Null when there is no more. @throws what else may fail.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void release(void* p) noexcept = 0;
  /// Called by a host thread before released blocks are given back to make room: waits until no queued work
  /// uses them. Not called for `fresh` memory.
  virtual void drain() {}
  /// "the system", for messages.
  virtual std::string owner() const = 0;
};

/// Hands out 128-byte aligned memory and keeps freed blocks for the next request of the same size.
///
/// Thread-safe. Sizes are rounded up to 128 bytes; every figure it reports is in rounded bytes of live
/// allocations (blocks kept for reuse are not counted). Reuse follows the order of calls: a block that is
/// released while work still queued on the device's compute stream reads it may be handed out again, which is
/// safe for later work of the *same* stream only (see Device).
class Allocator {
 public:
  /// @param label names the owner in messages, e.g. "rank 2".
  /// @param limit_bytes live bytes never pass this; 0 = no limit.
  /// @param source null: the host's memory.
  explicit Allocator(std::string label, int64_t limit_bytes = 0,
                     std::unique_ptr<MemorySource> source = nullptr);
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  /// @param fresh never reuse a released block: for memory asked for while work runs, not while it is queued.
  /// @throws OutOfMemory with the table of live allocations when the limit would be passed.
  void* allocate(int64_t bytes, std::string_view name, bool fresh = false);
  /// Returns a block; `bytes` and `name` as given to allocate(). Never throws.
  void release(void* p, int64_t bytes, std::string_view name) noexcept;

  int64_t live_bytes() const;
  /// Largest live_bytes() since construction or the last reset_peak(). Takes no lock: a callback of the
  /// device may ask while another thread waits for the device inside allocate().
  int64_t peak_bytes() const { return peak_.load(std::memory_order_relaxed); }
  /// Live bytes of all allocations whose name starts with `prefix`.
  int64_t live_bytes(std::string_view prefix) const;
  int64_t limit_bytes() const { return limit_; }
  void reset_peak();
  /// Lines sorted by peak bytes, largest first.
  std::vector<MemoryLine> table() const;
  /// The table as text, one line per name.
  std::string format_table() const;

  /// Told of every block that was handed out and goes back to the source, before it does: where something
  /// else still knows its address. On the thread that gives it back. It must not allocate and not throw.
  using OnReturn = std::function<void(const void* block, int64_t bytes)>;
  /// In force until the returned object goes, which waits for a call of `f` that is under way. The object
  /// must not outlive the allocator.
  [[nodiscard]] std::shared_ptr<void> on_return(OnReturn f);

  static int64_t rounded(int64_t bytes) { return bytes <= 0 ? 128 : (bytes + 127) / 128 * 128; }

 private:
  std::string format_locked() const;
  std::vector<MemoryLine> table_locked() const;
  void give_back(void* block, int64_t size) noexcept;
  void* from_source(int64_t size, bool fresh, std::unique_lock<std::mutex>& lock);

  mutable std::mutex mutex_;
  std::string label_;
  std::unique_ptr<MemorySource> source_;
  int64_t limit_;
  int64_t live_ = 0;
  std::atomic<int64_t> peak_{0};  // written under mutex_
  struct Entry {
    int64_t bytes = 0, peak = 0, count = 0, peak_count = 0;
  };
  std::map<std::string, Entry, std::less<>> names_;
  std::map<int64_t, std::vector<void*>> free_;
  std::mutex listeners_mutex_;
  std::list<OnReturn> listeners_;
};

}  // namespace sherd
