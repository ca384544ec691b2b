#include "misfit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include <nlohmann/json.hpp>

#include <sherd/kernels/error.h>

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

}  // namespace

FlagDifferences flag_differences(const sherd::TrainingState& saved, const TrainConfig& config) {
  const auto found = saved.info.find("config");
  if (found == saved.info.end()) return {};
  const auto then = nlohmann::json::parse(found->second, nullptr, false);
  const nlohmann::ordered_json now = to_json(config);
  const auto list = [&](std::vector<const char*> names) {
    std::vector<std::string> differences;
    for (const char* name : names) {
      if (!then.is_object() || !then.contains(name) || then[name] == nlohmann::json(now[name])) continue;
      differences.push_back(fmt::format("{} {} (here {})", flag(name), show(then[name]), show(now[name])));
    }
    return fmt::format("{}", fmt::join(differences, ", "));
  };
  return {list({"dim", "layers", "heads", "seq", "experts", "expert_top_k", "optimizer", "route"}),
          list({"heads", "expert_top_k"})};
}

std::string misfit(const sherd::TrainingState& saved, const TrainConfig& config) {
  const FlagDifferences differences = flag_differences(saved, config);
  if (!differences.required.empty())
    throw sherd::InvalidArgument(
        fmt::format("the checkpoint is of another model, although its shapes may fit: it was saved with {}",
                    differences.required));
  return differences.all.empty() ? "" : "it was saved with " + differences.all;
}

}  // namespace train_gpt
