// Settings that a resumed run inherits from the checkpoint.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/train/settings/fields.h>

#include "train_gpt/model/saved_model.h"
#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// Returns the settings that a resume takes from the checkpoint where neither flags nor a file give them: scopes OF_MODEL
/// and OF_RUN of settings.proto. With `weights_alone` (--resume-parts model) training is new: OF_MODEL alone.
std::vector<std::string_view> inherited_settings(bool weights_alone);

/// Settings that a run inherited.
struct Inherited {
  std::vector<std::string_view> names;  // of all settings that came from the checkpoint
  std::vector<std::string> flags;       // those of them that differ from the defaults, with values
  std::optional<SavedModel> model;      // the checkpoint's description of its run's --model, if any
};

/// Sets the inherited settings that are not `given`, from a readable checkpoint of --resume; the seed is the
/// checkpoint's. A given setting replaces saved ones that contradict it: text replaces token files, and a
/// model replaces --from-scratch of another model. Appends unusable saved values to `problems`, and the error
/// of an unreadable checkpoint to `unread`.
Inherited inherit(TrainConfig& config, const std::function<bool(std::string_view)>& given,
                  std::vector<std::string>& problems, std::string& unread);

}  // namespace train_gpt
