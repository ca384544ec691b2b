// Rules between --model and other flags that depend on the model's description.
#pragma once

#include "train_gpt/model/model_source.h"
#include "train_gpt/settings/setting_rules.h"
#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// Appends a line for each rule that is broken: --seq within the model's positions, --tp with its sizes,
/// --prompt-tokens with its vocabulary, and where its first weights come from. Values outside their own
/// bounds are left to others.
void check_model(const TrainConfig& config, const ModelSource& source, const RuleCheck& rules);

/// Returns "1,15,7" as numbers. @throws sherd::InvalidArgument naming --prompt-tokens for parts that are not
/// numbers, or outside of the vocabulary.
std::vector<int32_t> parse_prompt_tokens(std::string_view list, int64_t vocab);

}  // namespace train_gpt
