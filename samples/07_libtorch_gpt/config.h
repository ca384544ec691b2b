// Settings of libtorch_gpt: those of train_gpt (programs/train_gpt/settings/settings.proto) that apply to it.
#pragma once

#include <vector>

#include <sherd/comm/launch_options.h>
#include <sherd/dtensor/mesh.h>
#include <sherd/fsdp/options.h>
#include <sherd/train/report/trace_output.h>
#include <sherd/train/settings/command_line.h>

#include "train_gpt/rules/config_rules.h"

namespace libtorch_gpt {

/// Members for all of train_gpt's settings, of which fields_of() has those that libtorch_gpt serves.
struct Config : train_gpt::TrainConfig {
  Config() {
    data.clear();
    // Two, where sherd's default is one: libtorch's operations run on the ranks' own threads, and one unit more lets ranks
    // that share a machine's cores be further apart before they wait for each other (docs/performance.md).
    prefetch = 2;
    eval_windows = 256;
  }
};

/// The table of all flags, which refers to `config`.
std::vector<sherd::FieldGroup> fields_of(Config& config);

std::vector<sherd::MeshDim> mesh_of(const Config& config);
sherd::FullyShardOptions shard_options(const Config& config);
/// @param threads of each rank.
sherd::LaunchOptions launch_options(const Config& config, int threads);
sherd::TraceOptions trace_options(const Config& config);

}  // namespace libtorch_gpt
