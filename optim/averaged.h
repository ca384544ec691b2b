// Scope in which averages are in the place of the weights.
#pragma once

#include <sherd/optim/optimizer.h>
#include <sherd/optim/weight_average.h>

namespace sherd {

/// Scope in which the averages are the weights: of evaluation and of exports.
///
///    {
///      const Averaged averaged(optimizer);
///      loss = evaluate(model);
///    }
///
/// Training forwards and backwards, steps, loads, and saves of optimizer state throw inside. The end restores the weights, in bits.
/// Made between steps, on all ranks at the same point; model and optimizer outlive it. With several optimizers, a scope for each.
class [[nodiscard]] Averaged {
 public:
  /// @throws InvalidArgument without averages, inside another scope of this optimizer, and in a step: see
  /// ShardRuntime::pending().
  explicit Averaged(Optimizer& optimizer);
  /// Where the restoration fails, training throws until a checkpoint has been loaded (ShardRuntime::require_whole_weights()).
  ~Averaged();
  Averaged(const Averaged&) = delete;
  Averaged& operator=(const Averaged&) = delete;

 private:
  Optimizer& optimizer_;
};

}  // namespace sherd
