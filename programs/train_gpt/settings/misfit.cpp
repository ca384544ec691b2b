#include "train_gpt/settings/misfit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include <sherd/base/error.h>
#include <sherd/train/settings/config_differences.h>

#include "train_gpt/settings/settings.h"

namespace train_gpt {
namespace {

constexpr const char* kHowToFit =
    "leave these flags out, so that --resume takes them from the checkpoint, or name a checkpoint of this "
    "model";

}  // namespace

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
        fmt::format("--resume {}: the checkpoint is of another model: it was saved with {}; {}",
                    config.resume, differences.all, kHowToFit));
  return differences.all.empty() ? "" : fmt::format("it was saved with {}; {}", differences.all, kHowToFit);
}

}  // namespace train_gpt
