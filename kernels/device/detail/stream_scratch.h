// Scratch memory of a stream (ExecutionContext::scratch). Private to kernels/.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/allocator.h>

namespace sherd {

/// Bytes that a GPU's stream has for products of matrices, from its first on.
inline constexpr int64_t kProductWorkspace = int64_t{32} << 20;

/// Grows to the largest request and stays. Of every device, dry ones too, which therefore count the same bytes.
class StreamScratch {
 public:
  /// @param allocator outlives it.
  explicit StreamScratch(Allocator& allocator) : allocator_(allocator) {}
  ~StreamScratch() { allocator_.release(data_, true); }
  StreamScratch(const StreamScratch&) = delete;
  StreamScratch& operator=(const StreamScratch&) = delete;

  bool has(int64_t bytes) const { return bytes <= bytes_; }
  /// Returns memory of at least `bytes`; its contents are lost when it grows.
  /// @pre has(bytes), or nothing uses the memory of earlier calls.
  void* get(int64_t bytes) {
    if (has(bytes)) return data_;
    // First: the two blocks are never held for scratch together. The host is ahead of the worker, so what a sum of both
    // would meet of other memory differs from run to run.
    allocator_.release(data_, true);
    data_ = nullptr;
    bytes_ = 0;
    // The host may have released blocks that work still queued here reads, so none of those will do.
    data_ = allocator_.allocate(bytes, MemoryClass::scratch, "kernel scratch", true);
    bytes_ = bytes;
    return data_;
  }

 private:
  Allocator& allocator_;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace sherd
