// In which settings a run differs from the one that saved a checkpoint.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/checkpoint/format/manifest.h>

namespace sherd {

/// The settings among `names` in which the run that saved had other values, in their order and as flags:
/// "--heads 4 (here 2)". Empty where all agree or nothing is known.
/// @param saved with the saving run's config_text() as its info "config".
/// @param config this run's config_text().
std::vector<std::string> config_differences(const TrainingState& saved, const std::string& config,
                                            std::span<const std::string_view> names);

/// The list in words, with the first `most` and how many more there are: "--a 1 (here 2), --b 3 (here 4) and
/// 2 more".
std::string shortened(std::vector<std::string> list, size_t most);

}  // namespace sherd
