#include "misfit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include <sherd/kernels/device/error.h>
#include <sherd/train/settings/config_differences.h>

#include "settings.h"

namespace train_gpt {

FlagDifferences flag_differences(const sherd::TrainingState& saved, const TrainConfig& config) {
  const std::string here = config_text(config);
  const auto differences = [&](proto::OtherModel least) {
    const auto names = settings_where([&](const proto::Setting& s) { return s.other_model() >= least; });
    return fmt::format("{}", fmt::join(sherd::config_differences(saved, here, names), ", "));
  };
  return {differences(proto::NAMED), differences(proto::REFUSED)};
}

std::string run_differences(const sherd::TrainingState& saved, const TrainConfig& config) {
  constexpr size_t kShown = 6;
  return sherd::shortened(
      sherd::config_differences(saved, config_text(config), settings_where(describes_training)), kShown);
}

std::string misfit(const sherd::TrainingState& saved, const TrainConfig& config) {
  const FlagDifferences differences = flag_differences(saved, config);
  if (!differences.required.empty())
    throw sherd::InvalidArgument(
        fmt::format("the checkpoint is of another model: it was saved with {}", differences.all));
  return differences.all.empty() ? "" : "it was saved with " + differences.all;
}

}  // namespace train_gpt
