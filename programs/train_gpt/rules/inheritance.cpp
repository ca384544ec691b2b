#include "train_gpt/rules/inheritance.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/train/settings/saved_settings.h>

#include "train_gpt/settings/settings.h"

namespace train_gpt {
namespace {

bool contains(const auto& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

/// Whether the folder is a model's, without checkpoints in it.
bool is_hugging_face(const std::filesystem::path& folder) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(folder / "config.json", ignored) && !sherd::has_checkpoints(folder);
}

}  // namespace

std::vector<std::string_view> inherited_settings(bool weights_alone) {
  return settings_where([&](const proto::Setting& s) {
    return s.scope() == proto::OF_MODEL || (s.scope() == proto::OF_RUN && !weights_alone);
  });
}

Inherited inherit(TrainConfig& config, const std::function<bool(std::string_view)>& given,
                  std::vector<std::string>& problems, std::string& unread) {
  if (config.resume.empty()) return {};
  sherd::SavedTraining saved;
  try {
    saved = sherd::saved_training(config.resume);
  } catch (const sherd::Error& e) {
    if (!is_hugging_face(config.resume))
      unread = e.what();
    else
      problems.push_back(fmt::format(
          "--resume {}: a Hugging Face folder, not a checkpoint; give --model {}, or --init-weights "
          "{} for its weights alone",
          config.resume, config.resume, config.resume));
    return {};
  }
  const bool weights_alone = config.resume_parts == sherd::ResumeParts::model;
  std::vector<std::string_view> names = inherited_settings(weights_alone);
  std::erase_if(names, given);
  std::erase_if(names, [&](std::string_view name) {
    const auto& others = setting_of(name).replaced_by();
    return std::any_of(others.begin(), others.end(), [&](const std::string& other) { return given(other); });
  });
  // The optimizer alone brings no weights.
  if (config.resume_parts == sherd::ResumeParts::optimizer) std::erase(names, "from_scratch");
  Inherited inherited{.names = sherd::take_saved_settings(saved, fields_of(config), names, problems),
                      .flags = {},
                      .model = saved_model(saved)};
  const auto is_inherited = [&](std::string_view name) { return contains(inherited.names, name); };
  // The saved run may have been started with a seed other than the one it resumed with.
  if (is_inherited("seed")) config.seed = saved.training.seed;
  inherited.flags = changed_flags(config, TrainConfig(), is_inherited);
  return inherited;
}

}  // namespace train_gpt
