// Long-lived buffers for collectives.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <sherd/kernels/device/tensor.h>

namespace sherd {

class Communicator;

/// Specification of a buffer.
struct BufferSpec {
  int64_t elements = 0;
  DType dtype = DType::f32;
  MemoryClass kind = MemoryClass::message;
  std::string name;  // name of the allocation
};

/// Buffers that one rank's collectives use repeatedly, at the same addresses (Communicator::make_buffers). A
/// backend may give them memory that peers access directly. All ranks destroy their sets in the same order,
/// when no queued operation uses them; their tensors may outlive them.
class BufferSet {
 public:
  explicit BufferSet(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {}
  virtual ~BufferSet() = default;
  BufferSet(const BufferSet&) = delete;
  BufferSet& operator=(const BufferSet&) = delete;

  /// Returns the tensors in the order of the specifications; uninitialised.
  const std::vector<Tensor>& tensors() const { return tensors_; }

  /// Registers the buffers with the other ranks of `comm`, for its collectives. Collective over `comm` and
  /// host-blocking; before its first collective with them. A second call has no effect.
  /// @throws CommError as collectives do.
  virtual void share(Communicator& comm) { static_cast<void>(comm); }
  /// Returns a human-readable reason where the memory is not the requested kind. "" for ordinary memory.
  virtual std::string describe() const { return ""; }

 private:
  std::vector<Tensor> tensors_;
};

}  // namespace sherd
