// Unsharded weights of modules outside their calls.
#pragma once

#include <torch/nn/module.h>

#include <memory>

namespace sherd::torch {

/// While it lives, the parameters of `module`, and of all wrapped modules below, are there as a whole, in
/// their compute dtype: for reading, or for computing as in evaluation. No gradients are recorded on
/// this thread meanwhile; sherd::torch::call() is what training uses. They are not written to: change weights by
/// update_weights(), import_weights() or load_state_dict().
///
/// On a GPU libtorch's current stream on this thread is meanwhile that of sherd's compute stream; it ends on the thread
/// that began it.
///
/// Collective, outside of forwards and backwards: on all ranks at the same point, and ended at the same
/// point, where what was written is compared. Units that share gather memory get memory of their own for it, which the
/// model then keeps.
/// @throws InvalidArgument for a module that is not wrapped.
class [[nodiscard]] Unsharded {
 public:
  explicit Unsharded(::torch::nn::Module& module);
  /// end(), unless an exception ends the scope. It may throw: where it is in a std::optional or std::unique_ptr, whose
  /// destructors must not, end() comes first.
  ~Unsharded() noexcept(false);
  Unsharded(const Unsharded&) = delete;
  Unsharded& operator=(const Unsharded&) = delete;
  /// Gives the weights back; once. @throws InvalidArgument on every rank, naming the parameters that were written in place
  /// meanwhile, on whichever rank. Writes through Tensor::data(), or through pointers, are not seen.
  void end();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::torch
