// Rules among several of train_gpt's flags.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "train_gpt/settings/setting_rules.h"
#include "train_gpt/settings/train_config.h"

namespace train_gpt {

struct ModelSource;  // model_source.h

/// Appends a line for each rule that the settings break, those of settings.proto and those that compute; `bad` names the
/// settings that are outside their own bounds, which are not checked further. `source` is --model.
void check_rules(const TrainConfig& config, const std::set<std::string_view>& bad, const Given& given,
                 std::vector<std::string>& problems, const ModelSource* source = nullptr);

/// Returns the flags of settings that have no effect on this run, of those that a strategy decides about: "--bucket-size".
std::vector<std::string> idle_under_strategy(const TrainConfig& config);

}  // namespace train_gpt
