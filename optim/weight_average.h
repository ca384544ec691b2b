// Exponential moving average (EMA) of the weights that an optimizer updates.
#pragma once

#include <cstdint>
#include <vector>

#include <sherd/optim/update_rule.h>

namespace sherd {

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

}  // namespace sherd
