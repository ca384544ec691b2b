// Profile of this machine, by measurements and by steps of small models.
#pragma once

#include <sherd/train/plan/hardware_profile.h>

#include "train_gpt/settings/train_config.h"

namespace sherd::tools {

/// Measures with the run's ranks, threads and device: the rates of measure_hardware(), and in steps of small models with AdamW and
/// Muon, in fp32 and bf16, the rates of kinds of operations and the times of operations beside them.
[[nodiscard]] HardwareProfile measure_machine(const train_gpt::TrainConfig& config);

}  // namespace sherd::tools
