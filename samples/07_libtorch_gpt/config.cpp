#include "config.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

#include <sherd/comm/backend.h>
#include <sherd/dtensor/layout.h>

#include "train_gpt/settings/optimizer_config.h"
#include "train_gpt/settings/settings.h"

namespace libtorch_gpt {
namespace {

/// The settings of train_gpt that libtorch_gpt serves, beside those of Muon and SOAP.
constexpr std::string_view kServed[] = {"data",
                                        "seq",
                                        "batch",
                                        "grad_accum",
                                        "replicas",
                                        "strategy",
                                        "reshard_after_forward",
                                        "prefetch",
                                        "recompute",
                                        "dim",
                                        "layers",
                                        "heads",
                                        "init_weights",
                                        "optimizer",
                                        "steps",
                                        "lr",
                                        "lr_schedule",
                                        "warmup",
                                        "min_lr",
                                        "decay_steps",
                                        "adam_beta1",
                                        "adam_beta2",
                                        "adam_eps",
                                        "weight_decay",
                                        "grad_clip",
                                        "precision",
                                        "route",
                                        "memory_limit",
                                        "comm_timeout",
                                        "flight_recorder",
                                        "eval_every",
                                        "metrics",
                                        "timeline",
                                        "trace_steps",
                                        "export_weights",
                                        "ranks",
                                        "layout",
                                        "seed",
                                        "device",
                                        "comm",
                                        "threads",
                                        "save",
                                        "resume",
                                        "eval_windows",
                                        "trace",
                                        "quiet"};

bool is_served(std::string_view name) {
  const auto subject = train_gpt::setting_of(name).subject();
  if (subject == train_gpt::proto::MUON || subject == train_gpt::proto::SOAP)
    return name != "muon_tensor" && name != "explain_plan";
  return std::ranges::find(kServed, name) != std::end(kServed);
}

/// Help and words where they differ from train_gpt's; null: they do not.
struct Own {
  std::string_view name;
  const char* help;
  const char* words = nullptr;
};
constexpr Own kOwn[] = {
    {"ranks", "number of ranks: replicas x shards; default in a job with --comm nccl or mpi: its processes"},
    {"layout", nullptr, "ragged|even_rows|whole_param"},
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
     "timeline of every rank's streams, for chrome://tracing or Perfetto; without libtorch's operations"},
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

void check(const Config& c, const sherd::GivenFlags& given, std::vector<std::string>& problems) {
  if (c.steps > 0 && c.data.empty()) problems.push_back("--data is missing: a file or folder of text");
  if (c.dim % c.heads != 0) problems.push_back("--heads does not divide --dim");
  if (c.batch % (c.ranks * c.grad_accum) != 0)
    problems.push_back("--batch is not a multiple of --ranks times --grad-accum");
  if (c.ranks % c.replicas != 0) problems.push_back("--replicas does not divide --ranks");
  if (c.adam_beta1 == 1) problems.push_back("--adam-beta1 1: must be less than 1");
  if (c.adam_beta2 == 1) problems.push_back("--adam-beta2 1: must be less than 1");
  if (c.lr_schedule == "wsd" && c.decay_steps == 0)
    problems.push_back("--lr-schedule wsd: give --decay-steps N, the last steps, in which the rate falls");
  if (c.min_lr && *c.min_lr > c.lr)
    problems.push_back(fmt::format("--min-lr {}: must not be greater than --lr {}", *c.min_lr, c.lr));
  if (c.comm == "nccl" && c.device == "cpu")
    problems.push_back("--comm nccl: moves memory between GPUs; give --device cuda, or leave --comm local");
  if (c.comm == "mpi" && c.device == "cuda")
    problems.push_back("--comm mpi: moves memory of CPUs; give --comm nccl, or leave --device cpu");
  if (c.comm_timeout == 0) problems.push_back("--comm-timeout 0: must be greater than 0");
  for (std::string& problem : train_gpt::optimizer_problems(c)) problems.push_back(std::move(problem));
  for (std::string& problem : train_gpt::idle_optimizer_flags(c, given))
    problems.push_back(std::move(problem));
}

std::vector<sherd::MeshDim> mesh_of(const Config& c) {
  const sherd::MeshDim shard{"shard", static_cast<int>(c.ranks / c.replicas)};
  if (c.replicas == 1) return {shard};
  return {{"replicate", static_cast<int>(c.replicas)}, shard};
}

sherd::FullyShardOptions shard_options(const Config& c) {
  sherd::FullyShardOptions o;
  o.strategy = sherd::parse_strategy(c.strategy);
  o.layout = sherd::parse_layout(c.layout).policy;
  o.reshard_after_forward = c.reshard_after_forward;
  if (c.precision == "bf16") o.compute_dtype = sherd::DType::bf16;
  return o;
}

sherd::Schedule schedule_of(const Config& c) {
  return {.lr = c.lr,
          .warmup = c.warmup,
          .decay = sherd::parse_rate_decay(c.lr_schedule),
          .steps = c.steps,
          .least = c.min_lr && c.lr > 0 ? *c.min_lr / c.lr : sherd::Schedule().least,
          .decay_steps = c.decay_steps};
}

sherd::LaunchOptions launch_options(const Config& c, int threads) {
  sherd::LaunchOptions launch;
  launch.device.kind = sherd::parse_device_kind(c.device);
  launch.device.threads = threads;
  launch.device.memory_limit = c.memory_limit;
  launch.backend = sherd::parse_backend(c.comm);
  launch.timeout = std::chrono::milliseconds(std::llround(c.comm_timeout * 1e3));
  launch.flight_recorder.folder = c.flight_recorder;
  return launch;
}

sherd::TraceOptions trace_options(const Config& c) {
  return {.trace = c.trace,
          .timeline = c.timeline,
          .steps = c.trace_steps,
          .last_step = c.steps,
          .title = fmt::format("libtorch_gpt, {} rank{}, {}, {}", c.ranks, c.ranks == 1 ? "" : "s",
                               c.strategy, c.optimizer)};
}

}  // namespace libtorch_gpt
