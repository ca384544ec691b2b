// Flags of libtorch_gpt: those of train_gpt that apply here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sherd/comm/launch_options.h>
#include <sherd/dtensor/mesh.h>
#include <sherd/fsdp/options.h>
#include <sherd/optim/optimizer.h>
#include <sherd/optim/schedule.h>
#include <sherd/train/settings/command_line.h>
#include <sherd/train/report/trace_output.h>

namespace libtorch_gpt {

struct Config {
  std::string data, init_weights, export_weights, metrics, save, resume, trace, timeline, flight_recorder;
  std::string device = "cpu", comm = "local", strategy = "optim_grads_params", layout = "ragged", optimizer = "adamw", precision = "fp32",
              lr_schedule = "constant", recompute = "none";
  int64_t seq = 128, batch = 16, grad_accum = 1, ranks = 1, replicas = 1, threads = 0, steps = 100, warmup = 0,
          decay_steps = 0, eval_every = 0, eval_windows = 256, trace_steps = 2, memory_limit = 0;
  int64_t dim = 128, layers = 4, heads = 4;
  // Two, where sherd's default is one: libtorch's operations run on the ranks' own threads, and one unit more lets ranks
  // that share a machine's cores be further apart before they wait for each other (docs/performance.md).
  int64_t prefetch = 2;
  uint64_t seed = 0;
  double lr = 3e-3, weight_decay = 0.1, grad_clip = 1, comm_timeout = 300;
  double adam_beta1 = sherd::AdamWOptions().beta1, adam_beta2 = sherd::AdamWOptions().beta2,
         adam_eps = sherd::AdamWOptions().eps;
  std::optional<double> min_lr;
  bool reshard_after_forward = true, quiet = false;
};

/// The table of all flags, which refers to `config`.
std::vector<sherd::FieldGroup> fields_of(Config& config);
/// Appends what cannot be, beside values that are outside their own words and bounds.
void check(const Config& config, std::vector<std::string>& problems);

std::vector<sherd::MeshDim> mesh_of(const Config& config);
sherd::FullyShardOptions shard_options(const Config& config);
sherd::OptimizerOptions optimizer_options(const Config& config);
sherd::Schedule schedule_of(const Config& config);
/// @param threads of each rank.
sherd::LaunchOptions launch_options(const Config& config, int threads);
sherd::TraceOptions trace_options(const Config& config);

}  // namespace libtorch_gpt
