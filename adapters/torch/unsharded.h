// The whole weights of modules outside of their calls.
#pragma once

#include <torch/nn/module.h>

#include <memory>

namespace sherd::torch {

/// While it lives, the parameters of `module`, and of all wrapped modules below, are there as a whole, in
/// their compute dtype: to look at, or to compute with in the way of evaluation. No gradients are recorded on
/// this thread meanwhile; sherd::torch::call() is what training uses. Writing to them is lost: change weights
/// by LocalShards or load_state_dict().
///
/// On a GPU libtorch's current stream on this thread is meanwhile that of sherd's compute stream; it ends on the thread
/// that began it.
///
/// Collective, outside of forwards and backwards: on all ranks at the same point, and destroyed at the same
/// point. Units that share gather memory get memory of their own for it, which the model then keeps.
/// @throws InvalidArgument for a module that is not wrapped.
class Unsharded {
 public:
  explicit Unsharded(::torch::nn::Module& module);
  ~Unsharded();
  Unsharded(const Unsharded&) = delete;
  Unsharded& operator=(const Unsharded&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::torch
