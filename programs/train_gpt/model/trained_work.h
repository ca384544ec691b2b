// Parameters of a model, and matrix products for one token where some are frozen.
#pragma once

#include <sherd/nn/models/causal_model.h>
#include <sherd/train/report/flops.h>

#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// Elements of parameters, tied ones once: of all, of those that a token meets (of experts top_k), of trained ones.
struct ParameterCount {
  int64_t all = 0, active = 0, trained = 0;
};
ParameterCount count_parameters(const TrainConfig& config, const sherd::nn::CausalModel& model);

/// Returns token_work(config) with the model's adapters, and with what its frozen parameters save: TokenWork::frozen and
/// `ahead`. `model` is of this config.
sherd::TokenWork trained_work(const TrainConfig& config, sherd::nn::CausalModel& model);

}  // namespace train_gpt
