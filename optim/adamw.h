// AdamW on flat shards.
#pragma once

#include <string>
#include <vector>

#include <sherd/kernels/optimizer/optimizer.h>
#include <sherd/optim/update_rule.h>

namespace sherd {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  bool operator==(const AdamWOptions&) const = default;
};

/// Returns all invalid options, each with its value; empty when valid.
[[nodiscard]] std::vector<std::string> problems_of(const AdamWOptions& options);

/// AdamW: updates this rank's shard of each parameter from its grad_shard(); no communication. Formula and
/// order of operations: PyTorch's torch.optim.AdamW (Loshchilov & Hutter 2019), see AdamWArgs.
class AdamW : public UpdateRule {
 public:
  using Item = UpdateItem;
  /// Returns the factory for Optimizer.
  [[nodiscard]] static UpdateRuleFactory factory(const AdamWOptions& options);
  /// Allocates exp_avg and exp_avg_sq (of UpdateItem::state_dtype, zero) for the local pieces.
  /// @throws InvalidArgument naming all invalid options and weight decays.
  AdamW(Device& device, std::vector<Item> items, AdamWOptions options);
  /// Runs one pass for all parameters that share learning rate and betas (UpdateItem::settings). Every
  /// parameter counts its own updates for its bias correction; with `skip` other than 0 nothing is counted.
  void step(Stream& stream, double lr, const Tensor& skip = {}) override;
  /// Returns exp_avg and exp_avg_sq of every parameter.
  std::vector<StateTensor> state() const override;
  /// Returns "step", the number of updates so far, of every parameter.
  std::vector<StateCounter> counters() const override;

 private:
  struct Slot {
    Item item;
    RestState exp_avg, exp_avg_sq;
    size_t rates;     // index in rates_
    int64_t counter;  // index in steps_ and biases_
  };
  /// Rates that the slots at [begin, end) of steps_ and biases_ share.
  struct Rates {
    double lr_factor;
    AdamWOptions options;
    int64_t begin = 0, end = 0;
  };
  size_t rates_of(const Item& item);
  void count_updates(Stream& stream, size_t rates, const ops::AdamWRates& values, const Tensor& skip);
  std::vector<Slot> slots_;
  std::vector<Rates> rates_;
  Tensor steps_;   // f32, updates so far, one for each slot
  Tensor biases_;  // f32 [slots, 2]: bias corrections of the latest step
  AdamWOptions options_;
};

}  // namespace sherd
