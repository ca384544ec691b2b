// The settings of settings.proto: flags with values, and selections by their options.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/train/settings/command_line.h>
#include <sherd/train/settings/fields.h>

#include "settings.pb.h"
#include "settings_values.h"

namespace train_gpt {

/// All flags but --config, by subject; the values are those of `settings`, which outlives the list.
std::vector<sherd::FieldGroup> fields_of(Settings& settings);

/// The options of the setting with this name. @pre settings.proto has it.
const proto::Setting& setting_of(std::string_view name);

/// Returns the names of the settings that `wanted` accepts by their options, in the order of settings.proto.
template <class Wanted>
std::vector<std::string_view> settings_where(Wanted wanted) {
  std::vector<std::string_view> names;
  const auto& message = *proto::TrainConfig::descriptor();
  for (int i = 0; i < message.field_count(); ++i)
    if (wanted(message.field(i)->options().GetExtension(proto::setting)))
      names.push_back(message.field(i)->name());
  return names;
}

/// Returns the flag with a value: "--lr 0.5", and of a switch "--tf32".
std::string flag_with_value(const sherd::Field& field, const std::string& value);

/// Returns the flags, with values, of the settings that differ from `standard` and that `wanted` accepts by name.
std::vector<std::string> changed_flags(Settings settings, Settings standard,
                                       const std::function<bool(std::string_view)>& wanted);

/// Returns the flags of the command line whose options `wanted` accepts, as a list: "--lr, --save".
std::string given_flags(const sherd::GivenFlags& given,
                        const std::function<bool(const proto::Setting&)>& wanted);

/// Returns whether the setting describes the training: data, sharding, model, training, Muon.
bool describes_training(const proto::Setting& setting);

}  // namespace train_gpt
