#include "train_gpt/model/saved_model.h"

#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <sherd/base/detail/json_object.h>
#include <sherd/base/detail/json_text.h>
#include <sherd/base/error.h>

#include <sherd/nn/hf/model_config.h>
#include "train_gpt/model/model_source.h"
#include "train_gpt/settings/settings.h"

namespace train_gpt {
namespace {

namespace fs = std::filesystem;

sherd::hf::ModelConfig described(const SavedModel& saved) {
  if (saved.text.size() > kMostModelText)
    throw sherd::InvalidArgument(fmt::format("'{}': it has {} bytes, and at most {} are read", saved.source,
                                             saved.text.size(), kMostModelText));
  return sherd::hf::parse_model_config(saved.text, saved.source);
}

/// Requires a description in the checkpoint, where no folder can be followed.
void require_described(const SavedModel& saved) {
  try {
    described(saved);
  } catch (const sherd::InvalidArgument& e) {
    throw sherd::InvalidArgument(fmt::format("{}; name the model's folder with --model", e.what()));
  }
}

/// Returns the parts of a config.json that training follows, by key.
nlohmann::json followed(const sherd::hf::ModelConfig& config) {
  auto keys = nlohmann::json::parse(sherd::hf::model_config_text(config.description, sherd::DType::f32));
  if (routes_in_groups(config.description)) keys["num_nextn_predict_layers"] = config.mtp_layers;
  return keys;
}

/// "rope_theta" 10000.0 (in the checkpoint 500000.0); a few of them. Empty: the same model. For a
/// checkpoint's text that cannot be followed, the reason.
std::string differences(const ModelSource& here, const SavedModel& saved) {
  constexpr size_t kShown = 3;
  nlohmann::json a, b;
  try {
    const sherd::hf::ModelConfig its = described(saved);
    if (sherd::parse_object(here.text, here.config.source) == sherd::parse_object(saved.text, saved.source))
      return "";
    a = followed(here.config), b = followed(its);
  } catch (const sherd::InvalidArgument& e) {
    return e.what();
  }
  std::vector<std::string> all;
  const auto shown = [](const nlohmann::json& of, const std::string& key) {
    return of.contains(key) ? sherd::shown_value(of[key]) : "absent";
  };
  nlohmann::json keys = a;
  keys.update(b);
  for (const auto& [key, value] : keys.items())
    if (shown(a, key) != shown(b, key))
      all.push_back(fmt::format("\"{}\" {} (in the checkpoint {})", key, shown(a, key), shown(b, key)));
  if (all.size() > kShown) {
    const size_t more = all.size() - kShown;
    all.resize(kShown);
    all.push_back(fmt::format("and {} more", more));
  }
  return fmt::format("{}", fmt::join(all, ", "));
}

}  // namespace

std::optional<SavedModel> saved_model(const sherd::SavedTraining& saved) {
  const auto text = saved.training.info.find("model");
  if (text == saved.training.info.end()) return std::nullopt;
  TrainConfig its;
  std::vector<std::string> problems;  // reported where the setting is inherited
  constexpr std::string_view kModel[] = {"model"};
  take_saved_settings(saved, fields_of(its), kModel, problems);
  return SavedModel{its.model, text->second, fmt::format("{}, its model", saved.checkpoint.string())};
}

std::string text_for_checkpoints(const TrainConfig& c) {
  if (c.model_text.empty()) return "";
  std::string text = sherd::parse_object(c.model_text, c.model_from).dump();
  return text.size() <= kMostModelText ? text : "";
}

void choose_model_text(TrainConfig& c, const std::optional<SavedModel>& saved, bool given,
                       std::vector<std::string>& notes) {
  const auto follow = [&](std::string text, std::string from) {
    c.model_text = std::move(text);
    c.model_from = std::move(from);
    if (!c.save.empty() && text_for_checkpoints(c).empty())
      notes.push_back(
          fmt::format("--model {}: its config.json is longer than the {} bytes that checkpoints hold of one: "
                      "--resume will need the folder",
                      c.model, kMostModelText));
  };
  const bool same_name = saved && saved->name == c.model;
  if (same_name && !given) require_described(*saved);
  if (same_name && is_absent_folder(c.model)) {
    require_described(*saved);
    notes.push_back(fmt::format(
        "--model {}: the folder is missing; the model is as the checkpoint describes it", c.model));
    return follow(saved->text, saved->source);
  }
  ModelSource here;
  std::string differs;
  try {
    here = model_source(c.model);
    if (saved) differs = differences(here, *saved);
  } catch (const sherd::Error& e) {
    // The folder's, for the checkpoint's has been read.
    if (!same_name || given) throw;
    differs = e.what();
  }
  if (differs.empty()) return follow(std::move(here.text), here.config.source);
  const auto note = [&](const char* rest) {
    notes.push_back(
        fmt::format("--model {}: not the model of the checkpoint: {}; {}", c.model, differs, rest));
  };
  if (given) {
    note("--model's is used");
    return follow(std::move(here.text), here.config.source);
  }
  note("the checkpoint's is used");
  follow(saved->text, saved->source);
}

}  // namespace train_gpt
