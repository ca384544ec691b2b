// Value that functions compute with: a tensor, and its place on a tape.
#pragma once

#include <cstdint>
#include <utility>

#include <sherd/kernels/device/tensor.h>

namespace sherd::nn {

class Tape;

/// A handle; copies mean the same value. What functions (linear(), rms_norm(), ...) take and return. A Var
/// without a tape is just a tensor: what is computed from such values alone is not recorded, unless trainable parameters
/// take part inside of a recorded forward of their model. Used by one rank's thread, and not after its tape is gone.
///
/// The tensor's memory is written by the device's compute stream and must not change before backward: functions
/// keep their inputs without a copy.
class Var {
 public:
  Var() = default;
  /// Without a tape: a constant.
  Var(Tensor value) : value_(std::move(value)) {}

  bool defined() const { return value_.defined(); }
  const Tensor& value() const { return value_; }
  const Shape& shape() const { return value_.shape(); }
  int64_t size(int64_t d) const { return value_.size(d); }
  int64_t numel() const { return value_.numel(); }
  DType dtype() const { return value_.dtype(); }
  Device& device() const { return value_.device(); }
  /// The device's compute stream, on which all functions queue their work.
  Stream& stream() const { return value_.device().compute(); }

  /// Null for a constant that no tape knows.
  Tape* tape() const { return tape_; }
  /// Whether backward brings a gradient here.
  bool requires_grad() const { return id_ >= 0; }
  /// The same tensor on the same tape as a constant: no gradient goes through it.
  Var detach() const { return Var(value_, tape_, -1, 0); }

 private:
  friend class Tape;
  Var(Tensor value, Tape* tape, int64_t id, int64_t run)
      : value_(std::move(value)), tape_(tape), id_(id), run_(run) {}

  Tensor value_;
  Tape* tape_ = nullptr;
  int64_t id_ = -1;  // -1: no gradient comes here
  int64_t run_ = 0;  // of the tape
};

}  // namespace sherd::nn
