// Rules among several of train_gpt's flags.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/train/command_line.h>

#include "config.h"

namespace train_gpt {

/// Appends a line for each rule that the settings break; `bad` names those that are outside their own bounds,
/// of which nothing further is said. `given` are the flags of the command line.
void check_rules(const TrainConfig& config, const std::set<std::string_view>& bad,
                 const sherd::GivenFlags& given, std::vector<std::string>& problems);

}  // namespace train_gpt
