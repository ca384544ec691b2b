// Optimizer state for other components: by parameter and key, sharded exactly like the parameter.
#pragma once

#include <string>

#include <sherd/fsdp/parameter.h>

namespace sherd {

struct StateTensor {
  Parameter param = {};
  /// PyTorch's keys: "exp_avg", "exp_avg_sq" (AdamW) or "momentum_buffer" (Muon); of another optimizer any
  /// word without a dot. Files name the state by it, after the parameter's name.
  std::string key = {};
  /// Flat f32 piece at Parameter::shard_range().
  Tensor local = {};
};

/// Count of updates that an optimizer keeps for a parameter, the same on every rank: "step" of AdamW. Skipped
/// steps do not count; only the device knows of them when a step is issued.
struct StateCounter {
  Parameter param = {};
  std::string key = {};
  /// f32 [1], an integer; shared with the optimizer: writing it changes the optimizer.
  Tensor value = {};
};

}  // namespace sherd
