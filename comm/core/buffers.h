// Long-lived buffers for collectives.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <sherd/kernels/device/tensor.h>

namespace sherd {

class Communicator;

/// What a buffer is to be.
struct BufferSpec {
  int64_t elements = 0;
  DType dtype = DType::f32;
  MemoryClass kind = MemoryClass::message;
  std::string name;  // of the allocation
};

/// Buffers that one rank's collectives use again and again, at the same addresses (Communicator::make_buffers).
/// A backend may give them memory that peers reach directly. To be destroyed when nothing is queued any more
/// that uses them, by all ranks in the same order among their other sets; their tensors may live on.
class BufferSet {
 public:
  explicit BufferSet(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {}
  virtual ~BufferSet() = default;
  BufferSet(const BufferSet&) = delete;
  BufferSet& operator=(const BufferSet&) = delete;

  /// In the order of the specifications; uninitialised.
  const std::vector<Tensor>& tensors() const { return tensors_; }

  /// Makes the buffers known to the other ranks of `comm`, for whose collectives they then are. Collective over
  /// `comm` and host-blocking; before its first collective with them. A second time has no effect.
  /// @throws CommError as collectives do.
  virtual void share(Communicator& comm) { static_cast<void>(comm); }
  /// What became of them, for people: where they could not be what was asked for, why. "" where memory is
  /// memory.
  virtual std::string describe() const { return ""; }

 private:
  std::vector<Tensor> tensors_;
};

}  // namespace sherd
