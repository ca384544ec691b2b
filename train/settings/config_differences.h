// Differences between the settings of a run and those of the run that saved a checkpoint.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/checkpoint/format/manifest.h>

namespace sherd {

/// Returns the settings among `names` whose values differ from those of the saving run, in their order and as
/// flags: "--heads 4 (here 2)". Empty where all agree or the saved settings are unknown.
/// @param saved with the saving run's config_text() as its info "config".
/// @param config this run's config_text().
[[nodiscard]] std::vector<std::string> config_differences(const TrainingState& saved,
                                                          const std::string& config,
                                                          std::span<const std::string_view> names);

/// Formats the list: the first `most` entries and the number of others: "--a 1 (here 2), --b 3 (here 4) and 2
/// more".
std::string shortened(std::vector<std::string> list, size_t most);

}  // namespace sherd
