// Memory of matrices and messages of a team. Private to optim/.
#pragma once

#include <string>
#include <utility>

#include <sherd/kernels/device/tensor.h>

namespace sherd {

/// Named after the optimizer in memory reports.
class MatrixBuffers {
 public:
  /// @param optimizer as in "muon".
  MatrixBuffers(Device& device, const std::string& optimizer)
      : device_(device), matrices_(optimizer + " matrices"), messages_(optimizer + " messages") {}

  /// Returns f32 memory for matrices.
  Tensor matrices(Shape shape) const {
    return Tensor::empty(device_, std::move(shape), DType::f32, MemoryClass::scratch, matrices_);
  }
  /// Returns memory for a collective, which gets an unowned view. Messages of the side streams are released
  /// after the compute stream has waited for their arrival. All others are of the compute stream alone: later
  /// work may have the memory at once, however far the host is ahead.
  Tensor message(int64_t elements, DType dtype) const {
    return Tensor::empty(device_, {elements}, dtype, MemoryClass::message, messages_);
  }

 private:
  Device& device_;
  std::string matrices_, messages_;
};

}  // namespace sherd
