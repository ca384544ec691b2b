// Ranges of memory that a thread beside the streams has yet to read.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace sherd {

/// Who overwrites memory waits until its reader has it: a background save reads optimizer state where it rests. Thread-safe.
class PendingReads {
 public:
  /// Adds [begin, begin + bytes). Ranges may overlap others, and are counted.
  void add(const void* begin, int64_t bytes);
  /// Removes a range, or the part of one that has been read.
  void done(const void* begin, int64_t bytes);
  bool any() const;
  /// Blocks the calling thread until no range is in [begin, begin + bytes).
  void wait(const void* begin, int64_t bytes) const;
  /// The same for all ranges.
  void wait_all() const;

 private:
  bool within(uintptr_t begin, uintptr_t end) const;
  /// Adds `change` to the readers of an interval.
  void change(const void* begin, int64_t bytes, int change);

  mutable std::mutex mutex_;
  mutable std::condition_variable read_;
  std::map<uintptr_t, int> readers_;  // from each key up to the next one; none in front of the first
};

}  // namespace sherd
