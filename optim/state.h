// Optimizer state as others see it: by parameter and key, sharded exactly like the parameter.
#pragma once

#include <string>

#include <sherd/fsdp/parameter.h>

namespace sherd {

struct StateTensor {
  Parameter param;
  /// "exp_avg", "exp_avg_sq" (AdamW) or "momentum_buffer" (Muon), PyTorch's keys.
  std::string key;
  /// Flat f32 piece at Parameter::shard_range().
  Tensor local;
};

}  // namespace sherd
