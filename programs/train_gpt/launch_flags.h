// Between train_gpt's flags and the library's options of a launch.
#pragma once

#include <string>
#include <vector>

#include <sherd/comm/launcher.h>

#include "config.h"

namespace train_gpt {

/// What the flags under "Machine" ask for.
sherd::LaunchOptions launch_options(const TrainConfig& config);

/// What the flags contradict in the environment that a launcher made, before anything is started.
/// @throws sherd::InvalidArgument naming all of it, with variables and remedies.
void check_launch(const TrainConfig& config, const sherd::EnvironmentLookup& get = {});

/// Returns a line for each variable of the environment that asks for something and has no effect under these flags: the
/// job's secret where MPI distributes another one.
std::vector<std::string> idle_variables(const TrainConfig& config, const sherd::EnvironmentLookup& get = {});

/// A text of the library, which names options by their paths in sherd::LaunchOptions ("backend = nccl",
/// "nccl.check_calls") or as members ("LoadOptions::allow_new_state"), with this program's flags in their
/// place ("--comm nccl", "--nccl-check-calls", "--allow-new-state").
std::string with_flags(const std::string& message);

}  // namespace train_gpt
