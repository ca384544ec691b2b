// Gradient of a value: a tensor, a constant, or none.
#pragma once

#include <optional>
#include <utility>

#include <sherd/kernels/device/tensor.h>

namespace sherd::nn {

/// The derivative of the objective by each element of a value: nothing yet, a tensor of the value's shape and
/// dtype, or one number for all elements that the host knows. The last is how an objective begins (1) and what
/// sums, means and constant factors pass on: it costs no memory, and a loss can take it into its own kernel.
class Gradient {
 public:
  /// None: the objective does not depend on the value.
  Gradient() = default;
  Gradient(Tensor tensor) : tensor_(std::move(tensor)) {}
  static Gradient constant(float value) {
    Gradient g;
    g.constant_ = value;
    return g;
  }

  bool defined() const { return tensor_.defined() || constant_.has_value(); }
  /// The one number, if it is one.
  const std::optional<float>& constant() const { return constant_; }
  /// As a tensor with the shape, dtype and device of `like`: a constant is written out on the compute stream.
  /// @pre defined(). The tensor may be that of other values, too: it is read, not written.
  Tensor tensor(const Tensor& like) const { return tensor(like.device(), like.shape(), like.dtype()); }
  Tensor tensor(Device& device, const Shape& shape, DType dtype) const;
  /// The same of one that is no constant.
  const Tensor& tensor() const { return tensor_; }

  /// this += other, for a value like `device`, `shape`, `dtype` describe. Writes into memory that nobody else
  /// holds, if one of the two is such, and else into new memory.
  void add(Gradient other, Device& device, const Shape& shape, DType dtype);

 private:
  Tensor tensor_;
  std::optional<float> constant_;
};

}  // namespace sherd::nn
