// Gradient accumulation: several backwards for one step.
#pragma once

#include <memory>

#include <sherd/fsdp/fully_shard.h>

namespace sherd {

/// Time at which gradients of microbatches are summed over ranks.
enum class GradientSync {
  /// Follows the strategy table. no_shard and optim reduce once, after the last microbatch. optim_grads and
  /// optim_grads_params reduce after each microbatch, since a rank keeps only its part of the sum.
  by_strategy,
  /// After the last microbatch under every strategy, as FSDP2's set_requires_gradient_sync(false). Under
  /// optim_grads and optim_grads_params each unit then holds unsharded f32 gradients from its first backward
  /// to its last. This takes as much memory as no_shard, in gradient buffers that the model keeps for further
  /// steps. The bits are those of no_shard and optim; where gradients are kept in 16 bits (FullyShardOptions::grad_dtype), these
  /// round after each microbatch and it does once.
  last,
};

/// Scope in which no backward is the last of its step: gradients are accumulated and not final.
///
///    {
///      Accumulate accumulate(model);
///      for (the batches but the last) tape.backward(loss(batch));
///    }
///    tape.backward(loss(last));   // sums over ranks, averages
///    optimizer.step(lr);
///
/// Gradients are sums over microbatches; for their mean, divide the losses. All ranks open the same scopes.
/// Scopes are not nested. The model may be destroyed first. One rank's thread uses it, between forwards and
/// backwards.
class [[nodiscard]] Accumulate {
 public:
  /// @throws InvalidArgument before fully_shard(root), or inside another scope or set_last_microbatch(false).
  explicit Accumulate(ModuleBase& root, GradientSync sync = GradientSync::by_strategy);
  ~Accumulate();
  Accumulate(const Accumulate&) = delete;
  Accumulate& operator=(const Accumulate&) = delete;

 private:
  std::weak_ptr<ShardRuntime> runtime_;
};

}  // namespace sherd
