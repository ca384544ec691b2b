// Modules with a backward written by hand: one tensor in, one out.
#pragma once

#include <sherd/fsdp/module_base.h>

namespace sherd {

/// A part of a model with a hand-written backward. Derived classes describe parameters and children in their
/// constructor and override forward and backward. Callers use operator() and run_backward(), which unshard
/// and reduce around them when the module was wrapped by fully_shard(). (nn/module.h has modules with a
/// forward alone.)
///
/// An exception that ends a forward or backward passes through; in training, reset_step() then drops the
/// pending state of the step before the next one.
class Module : public ModuleBase {
 public:
  /// Queues the computation on the device's compute stream and returns its (pending) result. Called inside
  /// the backward of a unit it computes again what backward needs, for a backward that is due already: the
  /// whole parameters are then kept for it, and no further backward becomes due.
  Tensor operator()(const Tensor& x);
  /// Gradient with respect to the input of the latest call whose backward is still due.
  Tensor run_backward(const Tensor& dy);

 protected:
  virtual Tensor forward(const Tensor& x) = 0;
  /// Adds parameter gradients into Parameter::grad() (or grad_for_overwrite()) and returns the input's gradient
  /// (undefined if none).
  virtual Tensor backward(const Tensor& dy) = 0;
};

}  // namespace sherd
