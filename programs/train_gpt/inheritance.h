// Settings that a resumed run inherits from the checkpoint.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/train/settings/fields.h>

#include "config.h"
#include "saved_model.h"

namespace train_gpt {

/// Returns the settings that a resume takes from the checkpoint where neither flags nor a file give them: scopes OF_MODEL
/// and OF_RUN of settings.proto. With `weights_alone` (--resume-parts model) training is new: OF_MODEL alone.
std::vector<std::string_view> inherited_settings(bool weights_alone);

/// What a run took over.
struct Inherited {
  std::vector<std::string_view> names;  // of all settings that came from the checkpoint
  std::vector<std::string> flags;       // those of them that differ from the defaults, with values
  std::optional<SavedModel> model;      // what the checkpoint says of its run's --model, if it does
};

/// Where --resume names a checkpoint that can be read: sets what it is to inherit and is not `given`, the
/// seed as the checkpoint has it. What is given takes the place of settings that would contradict it: text
/// that of token files, a model the beginning at random of another. Appends saved values that cannot be used
/// to `problems`; why the checkpoint cannot be read to `unread`.
Inherited inherit(TrainConfig& config, const std::function<bool(std::string_view)>& given,
                  std::vector<std::string>& problems, std::string& unread);

}  // namespace train_gpt
