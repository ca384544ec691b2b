#include "misfit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include <nlohmann/json.hpp>

#include <sherd/kernels/device/error.h>

#include "config_fields.h"

namespace train_gpt {
namespace {

std::string flag(std::string name) {
  for (char& c : name)
    if (c == '_') c = '-';
  return "--" + name;
}

std::string show(const nlohmann::json& value) {
  return value.is_string() ? fmt::format("'{}'", value.get<std::string>()) : value.dump();
}

// The flags of the run that saved; no object where nothing is known.
nlohmann::json saved_config(const sherd::TrainingState& saved) {
  const auto found = saved.info.find("config");
  if (found == saved.info.end()) return {};
  return nlohmann::json::parse(found->second, nullptr, false);
}

void add_difference(const char* name, const nlohmann::json& then, const nlohmann::json& now,
                    std::vector<std::string>& list) {
  if (!then.is_object() || !then.contains(name) || then[name] == now[name]) return;
  list.push_back(fmt::format("{} {} (here {})", flag(name), show(then[name]), show(now[name])));
}

}  // namespace

FlagDifferences flag_differences(const sherd::TrainingState& saved, const TrainConfig& config) {
  const auto then = saved_config(saved), now = nlohmann::json(to_json(config));
  const auto list = [&](std::vector<const char*> names) {
    std::vector<std::string> differences;
    for (const char* name : names) add_difference(name, then, now, differences);
    return fmt::format("{}", fmt::join(differences, ", "));
  };
  return {list({"dim", "layers", "heads", "seq", "experts", "expert_top_k", "optimizer", "route"}),
          list({"heads", "expert_top_k"})};
}

std::string run_differences(const sherd::TrainingState& saved, const TrainConfig& config) {
  constexpr size_t kShown = 6;
  const auto then = saved_config(saved), now = nlohmann::json(to_json(config));
  std::vector<std::string> differences;
  for (const FieldGroup& group : field_groups()) {
    const std::string_view title = group.title;
    if (title == "Machine" || title == "Checkpoints" || title == "Output") continue;
    for (const Field& field : group.fields) add_difference(field.name, then, now, differences);
  }
  const size_t more = differences.size() - std::min(differences.size(), kShown);
  differences.resize(differences.size() - more);
  return fmt::format("{}{}", fmt::join(differences, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

std::string misfit(const sherd::TrainingState& saved, const TrainConfig& config) {
  const FlagDifferences differences = flag_differences(saved, config);
  if (!differences.required.empty())
    throw sherd::InvalidArgument(
        fmt::format("the checkpoint is of another model: it was saved with {}", differences.all));
  return differences.all.empty() ? "" : "it was saved with " + differences.all;
}

}  // namespace train_gpt
