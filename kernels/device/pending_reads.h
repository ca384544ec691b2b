// Ranges of memory that a thread beside the streams has yet to read.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>

namespace sherd {

/// A writer of such a range waits until the range was read: a background save reads optimizer state where it rests. The writer
/// waits for the reads that were there when its operation was queued: later ones wait for the operation. Thread-safe.
class PendingReads {
 public:
  /// Adds [begin, begin + bytes). @returns its number, which grows from 1
  uint64_t add(const void* begin, int64_t bytes);
  void done(uint64_t number);
  /// Returns the newest number among those that are not done; 0 without any.
  uint64_t newest() const;
  /// Blocks the calling thread until no range up to that number is in [begin, begin + bytes).
  void wait(uint64_t newest, const void* begin, int64_t bytes) const;
  /// The same for all memory.
  void wait(uint64_t newest) const;

 private:
  struct Range {
    uintptr_t begin, end;
  };
  mutable std::mutex mutex_;
  mutable std::condition_variable read_;
  uint64_t numbers_ = 0;
  std::map<uint64_t, Range> ranges_;
};

}  // namespace sherd
