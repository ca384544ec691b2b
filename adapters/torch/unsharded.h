// Unsharded weights of modules outside their calls.
#pragma once

#include <torch/nn/module.h>

#include <memory>

namespace sherd::torch {

/// Scope in which the parameters of `module`, and of all wrapped modules below it, are unsharded in their
/// compute dtype: for reading, or for computing as in evaluation. No gradients are recorded on this thread
/// meanwhile; training uses sherd::torch::call(). Do not write to them: change weights by update_weights(),
/// import_weights() or load_state_dict().
///
/// On a GPU, libtorch's current stream on this thread is meanwhile that of sherd's compute stream. The scope
/// ends on the thread that began it.
///
/// Collective, outside of forwards and backwards. All ranks begin it at the same point and end it at the same
/// point, where writes are compared. Units that share unshard memory get memory of their own for it, which
/// the model then keeps.
/// @throws InvalidArgument for a module that is not wrapped.
class [[nodiscard]] Unsharded {
 public:
  explicit Unsharded(::torch::nn::Module& module);
  /// Calls end(), unless an exception ends the scope. It may throw. In a std::optional or std::unique_ptr,
  /// whose destructors must not throw, call end() first.
  ~Unsharded() noexcept(false);
  Unsharded(const Unsharded&) = delete;
  Unsharded& operator=(const Unsharded&) = delete;
  /// Reshards the weights; call it once. @throws InvalidArgument on every rank, naming the parameters that
  /// were written in place meanwhile, on any rank. Writes through Tensor::data(), or through pointers, are
  /// not detected.
  void end();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::torch
