// Pooling allocator with named and classified allocations, a limit, and a bound on its cache.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <sherd/kernels/device/memory_class.h>

namespace sherd {

/// One line of the memory table: the allocations of one name and class.
struct MemoryLine {
  std::string name;
  MemoryClass kind = MemoryClass::scratch;
  int64_t bytes = 0;       // live now
  int64_t peak_bytes = 0;  // largest `bytes` ever was
  int64_t peak_count = 0;  // largest number of live ones of these allocations
};

/// Source of an allocator's blocks. Thread-safe.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// Returns a block; null when memory is exhausted. @throws other failures of the source.
  virtual void* allocate(int64_t bytes) = 0;
  /// `bytes` as given to allocate().
  virtual void release(void* p, int64_t bytes) noexcept = 0;
  /// Queued operations that may use a block released now have numbers up to queued(). They no longer use it
  /// when done() has reached that number (see RunAhead). Both 0: operations are never queued.
  virtual int64_t queued() const { return 0; }
  virtual int64_t done() const { return 0; }
  /// Called by a host thread that needs released blocks: waits until no queued operation uses them. Not
  /// called for `fresh` memory.
  virtual void drain() {}
  /// Returns the name in messages: "the system".
  virtual std::string owner() const = 0;
};

/// Hands out 128-byte aligned memory and keeps released blocks for later requests.
///
/// Thread-safe. Sizes are rounded up to 128 bytes. *Live* bytes are what callers hold, in rounded bytes.
/// *Held* bytes are what the source has given: live blocks and blocks kept for reuse, at their own sizes. A
/// request takes the smallest kept block that is at most an eighth too large, or a new one.
///
/// Reuse follows the order of calls: a block may be handed out again while operations queued on the device's
/// compute stream still read it. This is safe for later operations of the *same* stream only (see Device).
/// Request memory that the host or a stream's worker touches at once as `fresh`.
///
/// Bounded: when a request needs a new block and held bytes would exceed the recent peak of live bytes by
/// more than half of it and 1 MiB, blocks are returned to the source first, the longest unused first;
/// likewise at the limit. A block is returned only when no queued operation uses it: where too few blocks are
/// free of use, the caller waits for the device (MemorySource::drain).
class Allocator {
 public:
  /// @param label names the owner in messages, e.g. "rank 2".
  /// @param limit_bytes held bytes never pass this; 0 = no limit. `fresh` memory, which cannot wait for the
  /// device, may pass it by blocks kept for reuse that queued work still uses.
  /// @param source null: the host's memory.
  explicit Allocator(std::string label, int64_t limit_bytes = 0,
                     std::unique_ptr<MemorySource> source = nullptr);
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  /// @param kind, name purpose of the memory: counted by both.
  /// @param fresh memory that no queued operation uses, for use at once by the host or a running operation
  /// instead of in the order of the compute stream. Never waits for the device.
  /// @throws OutOfMemory with the table of live allocations when the limit would be passed; what drain()
  /// throws.
  void* allocate(int64_t bytes, MemoryClass kind, std::string_view name, bool fresh = false);
  /// Allocates memory of another source, counted and limited as if it were of this one. It is never kept for
  /// reuse: after release() it returns to `source`, once no queued operation uses it, when memory is next
  /// requested from the source or the allocator. Never waits for the device, as `fresh` memory. @throws as
  /// allocate().
  void* allocate_from(std::shared_ptr<MemorySource> source, int64_t bytes, MemoryClass kind,
                      std::string_view name);
  /// Releases a block of allocate() or allocate_from(), or null. `idle`: the caller knows that no queued
  /// operation uses it. Never throws.
  void release(void* p, bool idle = false) noexcept;

  /// Sizes of the blocks that the source has given and that have not returned to it: a step's, when it has run once.
  std::vector<int64_t> blocks() const;
  /// Takes blocks of these sizes from the source now and keeps them for requests, so that a step with such blocks() calls the source
  /// no more. Takes fewer where the limit or the source has no room for all: the request that misses them says so.
  void reserve(std::vector<int64_t> sizes);
  /// Sets a bound of held bytes, at which kept blocks are returned to the source as at the limit. Live bytes may pass it. 0: no bound
  /// but the limit.
  void keep_within(int64_t bytes);

  int64_t live_bytes() const;
  /// Largest live_bytes() since construction or the last reset_peak(). Takes no lock: a callback of the
  /// device may ask while another thread waits for the device inside allocate().
  int64_t peak_bytes() const { return peak_.load(std::memory_order_relaxed); }
  /// Live bytes of all allocations whose name starts with `prefix`.
  int64_t live_bytes(std::string_view prefix) const;
  /// Live bytes of all allocations of a class, and their largest value since construction or the last
  /// reset_peak(). Peaks of several classes need not have been at one time.
  int64_t live_bytes(MemoryClass kind) const;
  int64_t peak_bytes(MemoryClass kind) const;
  /// Live bytes of a class at the time of peak_bytes().
  int64_t bytes_at_peak(MemoryClass kind) const;
  int64_t limit_bytes() const { return limit_; }
  /// Bytes received from the source and not returned, and their largest value since construction or the last
  /// reset_peak(). Take no lock.
  int64_t held_bytes() const { return held_.load(std::memory_order_relaxed); }
  int64_t peak_held_bytes() const { return peak_held_.load(std::memory_order_relaxed); }
  /// Part of held_bytes() that is kept for reuse.
  int64_t kept_bytes() const;
  void reset_peak();
  /// Lines sorted by peak bytes, largest first.
  std::vector<MemoryLine> table() const;
  /// The table as text, one line per name and class, with live and held bytes below.
  std::string format_table() const;

  /// Called for every block that was handed out and returns to the source, before it does, for holders of the
  /// block's address. Called on the thread that returns it. It must not allocate and not throw.
  using OnReturn = std::function<void(const void* block, int64_t bytes)>;
  /// Registered until the returned object is destroyed, which waits for a running call of `f`. The object
  /// must not outlive the allocator.
  [[nodiscard]] std::shared_ptr<void> on_return(OnReturn f);

  /// Called before each call of a source; the call is over when the returned object is destroyed. For a library whose running
  /// operations the source would wait for. It may wait, without the allocator's lock, and does not throw.
  using Gate = std::function<std::shared_ptr<void>()>;
  /// Registered until the returned object is destroyed, which waits for calls that have passed. The object must not outlive the
  /// allocator.
  [[nodiscard]] std::shared_ptr<void> gate(Gate f);

  static int64_t rounded(int64_t bytes) { return bytes <= 0 ? 128 : (bytes + 127) / 128 * 128; }

 private:
  struct Block {
    void* data = nullptr;
    int64_t bytes = 0;
  };
  struct Kept {
    void* data;
    int64_t until;      // in use by queued work until done() is here
    uint64_t released;  // when, to find the longest unused
  };
  using Lock = std::unique_lock<std::mutex>;
  using Shelf = std::multimap<int64_t, Kept>;  // by size

  std::string format_locked() const;
  std::vector<MemoryLine> table_locked() const;
  void give_back(const Block& block, MemorySource& source) noexcept;
  /// Passes the gate, if any. Without the lock.
  std::shared_ptr<void> pass_gate();
  /// Returns a kept block for `size`, or none.
  Block reuse(int64_t size, bool fresh);
  Block take(Shelf::iterator at);
  /// Keeps a block for reuse when done() is at `until`.
  void keep(const Block& block, int64_t until);
  Block grow(MemorySource& source, int64_t size, std::string_view name, bool fresh, Lock& lock);
  void count(const Block& block, int64_t size, MemoryClass kind, std::string_view name);
  /// Frees released blocks of other sources that no queued operation uses.
  void give_back_foreign(Lock& lock);
  /// Reduces held bytes to at most `most` where kept blocks suffice. Waits for the device when `may_wait`.
  void shrink(int64_t most, bool may_wait, Lock& lock);
  /// Does the part of it that needs no waiting.
  void give_back_idle(int64_t most, Lock& lock);
  void drain(Lock& lock);
  void note_held(int64_t change) noexcept;
  /// Recent largest live bytes.
  int64_t recent_peak(int64_t live) noexcept;

  mutable std::mutex mutex_;
  std::string label_;
  std::unique_ptr<MemorySource> source_;
  int64_t limit_;
  int64_t keep_within_ = 0;
  int64_t live_ = 0, kept_ = 0;
  int64_t returning_ = 0;  // on its way to the source, still held
  int64_t drained_ = 0;    // what was queued before the latest drain() that has ended
  std::atomic<int64_t> peak_{0}, held_{0}, peak_held_{0};  // written under mutex_
  struct Entry {
    int64_t bytes = 0, peak = 0, count = 0, peak_count = 0;
  };
  /// Allocations of one name, by class; most names have one.
  using Named = std::map<MemoryClass, Entry>;
  std::map<std::string, Named, std::less<>> names_;
  struct ClassBytes {
    int64_t live = 0, peak = 0, at_peak = 0;
  };
  void note_peak() noexcept;
  std::array<ClassBytes, kMemoryClasses.size()> classes_{};
  struct Used {
    int64_t block_bytes;  // of the whole block
    int64_t live_bytes;   // as counted
    MemoryClass kind;
    Entry* entry;  // of names_, which only grows
  };
  std::unordered_map<void*, Used> used_;  // blocks that are live
  struct Foreign {
    Block block;
    std::shared_ptr<MemorySource> source;
    int64_t until;  // as of kept blocks, once released
  };
  std::unordered_map<void*, Foreign> foreign_;  // those of used_ that are of other sources
  std::vector<Foreign> leaving_;                // released ones
  Shelf shelf_;
  std::map<uint64_t, Shelf::iterator> by_age_;
  uint64_t releases_ = 0;
  int64_t window_peak_ = 0, last_window_peak_ = 0, window_count_ = 0;
  std::mutex listeners_mutex_;
  std::list<OnReturn> listeners_;
  Gate gate_;  // under listeners_mutex_
};

/// Memory of the host, which queued operations never use.
std::unique_ptr<MemorySource> host_memory();

}  // namespace sherd
