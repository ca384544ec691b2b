// Rules between --model and other flags that depend on the model's description.
#pragma once

#include <string>
#include <vector>

#include "config.h"
#include "model_source.h"

namespace train_gpt {

/// Appends a line for each rule that is broken: --seq within the model's positions, --tp with its sizes,
/// --prompt-tokens with its vocabulary, and where its first weights come from. Values outside their own
/// bounds are left to others.
void check_model(const TrainConfig& config, const ModelSource& source, std::vector<std::string>& problems);

}  // namespace train_gpt
