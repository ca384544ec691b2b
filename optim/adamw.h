// AdamW on flat shards.
#pragma once

#include <vector>

#include <sherd/fsdp/parameter.h>
#include <sherd/optim/state.h>

namespace sherd {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
};

/// Updates this rank's shard of each parameter from its grad_shard(); no communication. Formula and order of
/// operations: PyTorch's torch.optim.AdamW (Loshchilov & Hutter 2019), see AdamWArgs.
class AdamW {
 public:
  struct Item {
    Parameter param;
    double weight_decay = 0;
    /// Whether Parameter::model_copy(), where there is one, is written in the same pass.
    bool writes_copy = false;
  };
  /// Allocates exp_avg and exp_avg_sq (f32, zero) for the local pieces.
  AdamW(Device& device, std::vector<Item> items, AdamWOptions options);
  /// Queues the update on `stream`. Every parameter counts its own updates, for its bias correction.
  void step(Stream& stream, double lr);
  /// Appends exp_avg and exp_avg_sq of every parameter.
  void collect(std::vector<StateTensor>& out) const;
  /// Appends the number of updates so far of every parameter.
  void collect(std::vector<StateCounter>& out) const;

 private:
  struct Slot {
    Item item;
    Tensor exp_avg, exp_avg_sq;
    std::shared_ptr<int64_t> steps = std::make_shared<int64_t>(0);
  };
  std::vector<Slot> slots_;
  AdamWOptions options_;
};

}  // namespace sherd
