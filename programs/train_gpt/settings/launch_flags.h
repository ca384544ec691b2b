// Conversion of train_gpt's flags to the library's options of a launch.
#pragma once

#include <string>
#include <vector>

#include <sherd/comm/launcher.h>

#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// Returns the launch options of the flags under "Machine".
sherd::LaunchOptions launch_options(const TrainConfig& config);

/// Checks the flags against the environment that a launcher made, before the launch.
/// @throws sherd::InvalidArgument naming all contradictions, with variables and remedies.
void check_launch(const TrainConfig& config, const sherd::EnvironmentLookup& get = {});

/// Returns a line for each variable of the environment that asks for something and has no effect under these flags: the
/// job's secret where MPI distributes another one.
std::vector<std::string> idle_variables(const TrainConfig& config, const sherd::EnvironmentLookup& get = {});

/// Returns a text of the library, which names options by their paths in sherd::LaunchOptions ("backend =
/// nccl", "nccl.check_calls") or as members ("LoadOptions::allow_new_state"), with this program's flags
/// instead ("--comm nccl", "--nccl-check-calls", "--allow-new-state").
std::string with_flags(const std::string& message);

/// Prints a line on stderr, with this program's flags instead of the library's options.
void warn(const std::string& line);

}  // namespace train_gpt
