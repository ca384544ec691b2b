// Rules among several of train_gpt's flags.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/train/settings/command_line.h>

#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// Settings that were given, as opposed to defaults and those of a checkpoint.
struct Given {
  const sherd::GivenFlags& flags;                   // of the command line
  std::function<bool(std::string_view)> by_anyone;  // there, or in the config file
};

/// Appends a line for each rule that the settings break; `bad` names those that are outside their own bounds,
/// which are not checked further.
void check_rules(const TrainConfig& config, const std::set<std::string_view>& bad, const Given& given,
                 std::vector<std::string>& problems);

}  // namespace train_gpt
