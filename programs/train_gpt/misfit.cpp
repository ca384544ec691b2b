#include "misfit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include <sherd/kernels/device/error.h>
#include <sherd/train/settings/config_differences.h>

#include "config_fields.h"

namespace train_gpt {

FlagDifferences flag_differences(const sherd::TrainingState& saved, const TrainConfig& config) {
  constexpr std::string_view kAll[] = {"dim",     "layers",       "heads",     "seq",
                                       "experts", "expert_top_k", "optimizer", "route"};
  constexpr std::string_view kRequired[] = {"heads", "expert_top_k"};
  const std::string here = config_text(config);
  return {fmt::format("{}", fmt::join(sherd::config_differences(saved, here, kAll), ", ")),
          fmt::format("{}", fmt::join(sherd::config_differences(saved, here, kRequired), ", "))};
}

std::string run_differences(const sherd::TrainingState& saved, const TrainConfig& config) {
  constexpr size_t kShown = 6;
  std::vector<std::string_view> names;
  for (const char* title : {"Data", "Ranks and sharding", "Model", "Training", "Muon"})
    for (const std::string_view name : names_of_group(title)) names.push_back(name);
  return sherd::shortened(sherd::config_differences(saved, config_text(config), names), kShown);
}

std::string misfit(const sherd::TrainingState& saved, const TrainConfig& config) {
  const FlagDifferences differences = flag_differences(saved, config);
  if (!differences.required.empty())
    throw sherd::InvalidArgument(
        fmt::format("the checkpoint is of another model: it was saved with {}", differences.all));
  return differences.all.empty() ? "" : "it was saved with " + differences.all;
}

}  // namespace train_gpt
