// Gradient accumulation: several backwards for one step.
#pragma once

#include <memory>

#include <sherd/fsdp/fully_shard.h>

namespace sherd {

/// When gradients of microbatches are summed over ranks.
enum class GradientSync {
  /// As the strategy's table has it: no_shard and optim once, behind the last microbatch; optim_grads and
  /// optim_grads_params behind each, since a rank keeps its part of the sum alone.
  by_strategy,
  /// Behind the last microbatch under every strategy, which is FSDP2's set_requires_gradient_sync(false).
  /// Under optim_grads and optim_grads_params each unit then holds whole gradients, f32, from its first
  /// backward to its last: as much memory as under no_shard, in gradient buffers that the model keeps for
  /// further steps. The bits are those of no_shard and optim.
  last,
};

/// While it lives, backwards are not the last of their step: their gradients are added up, and are not final.
///
///     {
///       Accumulate accumulate(model);
///       for (the batches but the last) tape.backward(loss(batch));
///     }
///     tape.backward(loss(last));   // sums over ranks, averages
///     optimizer.step(lr);
///
/// Gradients are sums over microbatches: whoever wants their mean divides the objectives. On every rank
/// alike; scopes are not nested. The model may go first. One rank's thread uses it, between forwards and
/// backwards.
class Accumulate {
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
