// AdamW on flat shards.
#pragma once

#include <string>
#include <vector>

#include <sherd/optim/update_rule.h>

namespace sherd {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  bool operator==(const AdamWOptions&) const = default;
};

/// What cannot be, each with its value; empty when all is well.
std::vector<std::string> problems_of(const AdamWOptions& options);

/// Updates this rank's shard of each parameter from its grad_shard(); no communication. Formula and order of
/// operations: PyTorch's torch.optim.AdamW (Loshchilov & Hutter 2019), see AdamWArgs.
class AdamW : public UpdateRule {
 public:
  using Item = UpdateItem;
  /// For Optimizer.
  static UpdateRuleFactory factory(const AdamWOptions& options);
  /// Allocates exp_avg and exp_avg_sq (f32, zero) for the local pieces.
  /// @throws InvalidArgument naming all options and weight decays that cannot be.
  AdamW(Device& device, std::vector<Item> items, AdamWOptions options);
  /// One pass for all parameters that share learning rate and betas (UpdateItem::settings). Every parameter counts
  /// its own updates, for its bias correction; with
  /// `skip` other than 0 nothing is counted.
  void step(Stream& stream, double lr, const Tensor& skip = {}) override;
  /// exp_avg and exp_avg_sq of every parameter.
  std::vector<StateTensor> state() const override;
  /// "step", the number of updates so far, of every parameter.
  std::vector<StateCounter> counters() const override;

 private:
  struct Slot {
    Item item;
    Tensor exp_avg, exp_avg_sq;
    size_t rates;     // which of rates_ are its own
    int64_t counter;  // its place in steps_ and biases_
  };
  /// What the slots at [begin, end) of steps_ and biases_ share.
  struct Rates {
    double lr_factor;
    AdamWOptions options;
    int64_t begin = 0, end = 0;
  };
  size_t rates_of(const Item& item);
  std::vector<Slot> slots_;
  std::vector<Rates> rates_;
  Tensor steps_;   // f32, one for each slot: updates so far
  Tensor biases_;  // f32 [slots, 2]: what follows from them, for the latest step
  AdamWOptions options_;
};

}  // namespace sherd
