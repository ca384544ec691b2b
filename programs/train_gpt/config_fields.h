// The one list of train_gpt's flags: names, places in TrainConfig, bounds and help.
#pragma once

#include <string_view>
#include <vector>

#include <sherd/train/settings/fields.h>

#include "config.h"

namespace train_gpt {

/// All flags but --config, under their headings; the values are those of `config`, which outlives the list.
std::vector<sherd::FieldGroup> fields_of(TrainConfig& config);

/// The names under one heading, in order.
std::vector<std::string_view> names_of_group(std::string_view title);

}  // namespace train_gpt
