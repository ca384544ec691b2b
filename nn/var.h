// Value that functions compute with: a tensor, and its place on a tape.
#pragma once

#include <cstdint>
#include <utility>

#include <sherd/kernels/device/tensor.h>

namespace sherd {
class Parameter;
}

namespace sherd::nn {

class Tape;
namespace detail {
class ScopeArguments;
}

/// Handle of a value; copies refer to the same value. Functions (linear(), rms_norm(), ...) take and return
/// it. A Var without a tape is just a tensor. Values computed from such values alone are not recorded, unless
/// trainable parameters are used inside a recorded forward of their model. One rank's thread uses it, and not
/// after its tape is destroyed.
///
/// The device's compute stream writes the tensor's memory, which must not change before backward: functions
/// keep their inputs without a copy.
class Var {
 public:
  Var() = default;
  /// Makes a constant, without a tape.
  Var(Tensor value) : value_(std::move(value)) {}
  /// Makes the value of a parameter inside the forward of its model: see value().
  Var(const Parameter& p);

  bool defined() const { return value_.defined(); }
  const Tensor& value() const { return value_; }
  const Shape& shape() const { return value_.shape(); }
  int64_t size(int64_t d) const { return value_.size(d); }
  int64_t numel() const { return value_.numel(); }
  DType dtype() const { return value_.dtype(); }
  Device& device() const { return value_.device(); }
  /// Returns the device's compute stream, on which all functions queue their operations.
  Stream& stream() const { return value_.device().compute(); }

  /// Returns the tape; null for a constant without one.
  Tape* tape() const { return tape_; }
  /// Returns whether backward gives it a gradient.
  bool requires_grad() const { return id_ >= 0; }
  /// Returns the same tensor on the same tape as a constant: no gradient passes through it.
  Var detach() const { return Var(value_, tape_, -1, 0); }

 private:
  friend class Tape;
  friend class detail::ScopeArguments;
  Var(Tensor value, Tape* tape, int64_t id, int64_t run)
      : value_(std::move(value)), tape_(tape), id_(id), run_(run) {}

  Tensor value_;
  Tape* tape_ = nullptr;
  int64_t id_ = -1;  // -1: it has no gradient
  int64_t run_ = 0;  // of the tape
};

}  // namespace sherd::nn
