// Gradient of a value: a tensor, a constant, or none.
#pragma once

#include <optional>
#include <utility>

#include <sherd/kernels/device/tensor.h>

namespace sherd::nn {

/// Derivative of the objective by each element of a value: none yet, a tensor of the value's shape and dtype,
/// or one constant for all elements, known to the host. An objective starts with a constant (1), and sums,
/// means and constant factors pass it on. It needs no memory, and a loss can use it in its own kernel.
class Gradient {
 public:
  /// Makes none: the objective does not depend on the value.
  Gradient() = default;
  Gradient(Tensor tensor) : tensor_(std::move(tensor)) {}
  static Gradient constant(float value) {
    Gradient g;
    g.constant_ = value;
    return g;
  }

  bool defined() const { return tensor_.defined() || constant_.has_value(); }
  /// Returns the constant, if it is one.
  const std::optional<float>& constant() const { return constant_; }
  /// Returns a tensor with the shape, dtype and device of `like`: a constant is written out on the compute
  /// stream.
  /// @pre defined(). Other values may share the tensor: read it only.
  Tensor tensor(const Tensor& like) const { return tensor(like.device(), like.shape(), like.dtype()); }
  Tensor tensor(Device& device, const Shape& shape, DType dtype) const;
  /// Returns the tensor of a gradient that is not a constant.
  const Tensor& tensor() const { return tensor_; }

  /// Adds other, for a value described by `device`, `shape`, `dtype`. Writes into memory that only one of the
  /// two holds, if any, and else into new memory.
  void add(Gradient other, Device& device, const Shape& shape, DType dtype);

 private:
  Tensor tensor_;
  std::optional<float> constant_;
};

}  // namespace sherd::nn
