// Copy of a rank's saved data to host memory. Private to checkpoint/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include <sherd/checkpoint/save_plan.h>
#include <sherd/kernels/device/device.h>

namespace sherd {

/// Copies on a stream of its own, behind the work queued on compute() so far and beside what comes later.
/// Used by one thread at a time.
class CopyOut {
 public:
  /// `tensors` outlive it.
  CopyOut(Device& device, const std::vector<LocalTensor>& tensors);
  ~CopyOut() { forget(); }

  /// The copied data of all files, one after the other, to `to` (Tensor::host, u8). Host values are read now.
  /// @returns when it is there: until then the tensors must not change, nor `to` go. What is read in place is written
  /// afterwards, by snapshot(): until then its pieces do not change (Device::tier_reads()).
  Event all(const std::vector<PlannedFile>& files, const Tensor& to);
  /// The data of one file from front to back, files in the order of all(), once its event is done. Any thread.
  /// @param copied the file's first byte in `to`; moved behind its last
  void snapshot(const PlannedFile& file, const std::byte*& copied,
                const std::function<void(const void*, int64_t bytes)>& take);
  /// Ends what was to be read in place.
  void forget();
  /// The data of one file from front to back, block by block: while `take` has one, the next is under way.
  void blocks(const PlannedFile& file, const std::function<void(const void*, int64_t bytes)>& take);

 private:
  void copy(const LocalTensor& tensor, int64_t first, int64_t count, const Tensor& to);
  void copy_joined(const LocalTensor& tensor, int64_t first, int64_t count, const Tensor& to);

  Device& device_;
  const std::vector<LocalTensor>& tensors_;
  Tensor joined_;  // f32, of the stream alone
  struct Piece {
    Tensor data;
    uint64_t number;  // in PendingReads
  };
  std::deque<Piece> in_place_;  // that snapshot() has yet to take, in its order
  std::unique_ptr<Stream> stream_;
};

}  // namespace sherd
