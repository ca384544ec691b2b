// Exponential moving average (EMA) of the weights that an optimizer updates.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <sherd/fsdp/runtime.h>
#include <sherd/optim/update_rule.h>

namespace sherd {

class Optimizer;

/// Averages of the weights of one optimizer (OptimizerOptions::ema_decay), each rank those of the elements that it holds:
///   average += (1 - decay) * (weight - average)
/// after every update that is not skipped, from the weights as the update and all of Optimizer::after_update() leave them.
/// Their bits do not depend on ranks, strategy or layout. One rank's thread uses it.
class WeightAverage {
 public:
  /// Allocates the averages of these parameters, in `dtype` (f32 or bf16, stochastically rounded) at each item's place, and
  /// restarts them.
  WeightAverage(Device& device, std::vector<UpdateItem> items, double decay, DType dtype);

  /// Queues a copy of the present weights to the averages.
  void restart();
  /// Queues one update of the averages. Those of parameters that are frozen at present stay unchanged, in bits; all do with `skip`
  /// other than 0.
  /// @param steps Optimizer::steps(), which selects the noise of rounding
  void update(Stream& compute, int64_t steps, const Tensor& skip);
  /// Queues the exchange of weights and averages; the second call restores both, in bits. A copy of the weights is kept between the
  /// calls where one of the two is bf16 and the other is not.
  void exchange();
  /// Returns whether the weights are in the place of the averages.
  bool exchanged() const { return exchanged_; }
  /// Returns the averages, with key "ema".
  std::vector<StateTensor> state() const;

 private:
  struct Slot {
    UpdateItem item;
    Tensor average;
    Tensor kept, kept_low;  // the weights, between calls of exchange()
  };
  Device& device_;
  double decay_;
  bool exchanged_ = false;
  std::vector<Slot> slots_;
  Tensor draws_;  // f32 [1]: steps, where averages are rounded
};

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
