// Matrix products for one token where some parameters are frozen.
#pragma once

#include <sherd/nn/models/causal_model.h>
#include <sherd/train/report/flops.h>

#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// Returns token_work(config) with the model's adapters, and with what its frozen parameters save: TokenWork::frozen and
/// `ahead`. `model` is of this config.
sherd::TokenWork trained_work(const TrainConfig& config, sherd::nn::CausalModel& model);

}  // namespace train_gpt
