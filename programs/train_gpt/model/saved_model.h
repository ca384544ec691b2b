// The config.json that a run follows: that of --model, or the one that the checkpoint of --resume holds.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <sherd/train/settings/saved_settings.h>

#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// Maximum length without blanks; longer texts are neither put into checkpoints nor read from them. Published
/// ones have 1 to 3 KiB.
constexpr size_t kMostModelText = size_t{64} << 10;

/// c.model_text as a checkpoint holds it, in its info "model": on one line. Empty: without such a text, or it
/// is too long.
std::string text_for_checkpoints(const TrainConfig& c);

/// Description of a run's --model in its checkpoint.
struct SavedModel {
  std::string name;    // as --model named it
  std::string text;    // of config.json: info "model"
  std::string source;  // for messages: the checkpoint
};

/// Returns the description; none for a run without --model, or for one that was saved before checkpoints held
/// it.
std::optional<SavedModel> saved_model(const sherd::SavedTraining& saved);

/// Sets c.model_text and c.model_from to the config.json that the run follows. That is --model's, with one
/// exception: a resumed run (`saved`) whose --model is the one that the checkpoint names, because it is not
/// `given` or the same. Such a run follows the checkpoint's text when the folder is missing, and when the
/// folder describes another model now and --model was not given. Each difference is a line in `notes`, and so
/// is a text too long for the checkpoints that are to be saved.
/// @throws sherd::InvalidArgument as model_source() and sherd::hf::parse_model_config(), also for the checkpoint's
/// text; sherd::IoError.
void choose_model_text(TrainConfig& c, const std::optional<SavedModel>& saved, bool given,
                       std::vector<std::string>& notes);

}  // namespace train_gpt
