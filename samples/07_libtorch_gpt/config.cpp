#include "config.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

#include "train_gpt/settings/launch_flags.h"
#include "train_gpt/settings/optimizer_config.h"
#include "train_gpt/settings/run_options.h"
#include "train_gpt/settings/settings.h"

namespace libtorch_gpt {
namespace {

/// The settings of train_gpt that libtorch_gpt serves, beside those of Muon and SOAP.
constexpr std::string_view kServed =
    " data seq batch grad_accum replicas strategy reshard_after_forward prefetch recompute dim "
    "layers heads init_weights optimizer steps lr lr_schedule warmup min_lr decay_steps "
    "adam_beta1 adam_beta2 adam_eps weight_decay grad_clip precision route memory_limit "
    "comm_timeout flight_recorder eval_every metrics timeline trace_steps export_weights "
    "ranks layout seed device comm threads save resume eval_windows trace quiet ";

bool is_served(std::string_view name) {
  const auto subject = train_gpt::setting_of(name).subject();
  if (subject == train_gpt::proto::MUON || subject == train_gpt::proto::SOAP)
    return name != "muon_tensor" && name != "explain_plan";
  return kServed.find(fmt::format(" {} ", name)) != kServed.npos;
}

/// Help and words where they differ from train_gpt's; null: they do not.
struct Own {
  std::string_view name;
  const char* help;
  const char* words = nullptr;
};
constexpr Own kOwn[] = {
    {"ranks", "number of ranks: replicas x shards; default in a job with --comm nccl or mpi: its processes"},
    {"strategy", "sharding strategy; zero0, zero1, zero2 and zero3 are aliases, in this order",
     "no_shard|optim|optim_grads|optim_grads_params"},
    {"layout", nullptr, "ragged|even_rows|whole_param"},
    {"recompute", "blocks: drop the activations of blocks and compute them again in backward", "none|blocks"},
    {"seed", "seed of libtorch's generator, for the first weights"},
    {"device", "cuda: rank r of the host's processes uses GPU r, in builds with -DSHERD_TORCH_CUDA=ON"},
    {"comm",
     "local: ranks are threads; nccl: GPUs, also processes of torchrun, mpirun or srun; mpi: processes of "
     "mpirun on CPUs",
     "local|nccl|mpi"},
    {"threads", "libtorch's threads per rank; 0: cores / ranks"},
    {"save", "folder of a checkpoint, written at the end"},
    {"resume", "checkpoint to resume from, on any number of ranks"},
    {"eval_windows", "held-out windows per evaluation, evenly spaced; 0: all"},
    {"trace",
     "timeline of every rank's streams, for chrome://tracing or Perfetto; libtorch's operations are one "
     "lane"},
    {"quiet", "print only errors"}};

}  // namespace

std::vector<sherd::FieldGroup> fields_of(Config& c) {
  std::vector<sherd::FieldGroup> groups = train_gpt::fields_of(c);
  for (sherd::FieldGroup& group : groups) {
    std::erase_if(group.fields, [](const sherd::Field& field) { return !is_served(field.name); });
    for (sherd::Field& field : group.fields) {
      const Own* const own = std::ranges::find(kOwn, std::string_view(field.name), &Own::name);
      if (own == std::end(kOwn)) continue;
      if (own->help != nullptr) field.help = own->help;
      if (own->words != nullptr) field.value = own->words;
    }
  }
  std::erase_if(groups, [](const sherd::FieldGroup& group) { return group.fields.empty(); });
  return groups;
}

std::vector<sherd::MeshDim> mesh_of(const Config& c) {
  const sherd::MeshDim shard{"shard", static_cast<int>(c.ranks / c.replicas)};
  if (c.replicas == 1) return {shard};
  return {{"replicate", static_cast<int>(c.replicas)}, shard};
}

sherd::FullyShardOptions shard_options(const Config& c) {
  sherd::FullyShardOptions o;
  o.strategy = *c.strategy;
  o.layout = train_gpt::layout_of(c).policy;
  o.reshard_after_forward = c.reshard_after_forward;
  o.compute_dtype = c.precision;
  return o;
}

sherd::LaunchOptions launch_options(const Config& c, int threads) {
  sherd::LaunchOptions launch = train_gpt::launch_options(c);
  launch.device.threads = threads;
  return launch;
}

sherd::TraceOptions trace_options(const Config& c) {
  sherd::TraceOptions options = train_gpt::trace_options(c);
  options.title.replace(0, options.title.find(','), "libtorch_gpt");
  return options;
}

}  // namespace libtorch_gpt
