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
  };
  /// Allocates exp_avg and exp_avg_sq (f32, zero) for the local pieces.
  AdamW(Device& device, std::vector<Item> items, AdamWOptions options);
  /// Queues the update on `stream`. `step` counts from 1.
  void step(Stream& stream, double lr, int64_t step);
  /// Appends exp_avg and exp_avg_sq of every parameter.
  void collect(std::vector<StateTensor>& out) const;

 private:
  struct Slot {
    Item item;
    Tensor exp_avg, exp_avg_sq;
  };
  std::vector<Slot> slots_;
  AdamWOptions options_;
};

}  // namespace sherd
