#include "config.h"

#include <chrono>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include <sherd/comm/backend.h>
#include <sherd/dtensor/layout.h>

namespace libtorch_gpt {
namespace {

std::string_view canonical_strategy(std::string_view word) {
  constexpr std::string_view names[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
  return word.size() == 5 && word.starts_with("zero") && word[4] >= '0' && word[4] <= '3'
             ? names[word[4] - '0']
             : word;
}

}  // namespace

std::vector<sherd::FieldGroup> fields_of(Config& c) {
  constexpr double kMost = 1 << 20;
  return {
      {"Data",
       {{"data", &c.data, "PATH", "text: a file, or a folder with all files below it"},
        {"seq", &c.seq, "T", "bytes of text per sequence", 1, kMost},
        {"batch", &c.batch, "N", "sequences per step over all ranks", 1, kMost},
        {"grad_accum", &c.grad_accum, "N", "microbatches each rank splits its sequences into", 1, kMost}}},
      {"Ranks and sharding",
       {{"ranks", &c.ranks, "N",
         "all ranks: replicas x shards; with --comm nccl or mpi in a job, when not given: its processes", 1,
         1024},
        {"replicas", &c.replicas, "N", "groups of ranks that hold the model once each (HSDP)", 1, 1024},
        {"comm", &c.comm, "local|nccl|mpi",
         "local: ranks are threads of this process; nccl: one GPU each, also as processes of torchrun, "
         "mpirun or srun; mpi: "
         "processes of mpirun on CPUs"},
        {"strategy", &c.strategy, "no_shard|optim|optim_grads|optim_grads_params",
         "what is sharded; also known as zero0, zero1, zero2, zero3", 0, 0, canonical_strategy},
        {"layout", &c.layout, "ragged|even_rows|whole_param", "where parameters are cut"},
        {"reshard_after_forward", &c.reshard_after_forward, "true|false",
         "give weights back between forward and backward"},
        {"prefetch", &c.prefetch, "N",
         "blocks gathered ahead of the one that computes, each with memory of its own", 0, 64},
        {"recompute", &c.recompute, "none|blocks",
         "keep what enters a block alone, and compute the rest again in backward"}}},
      {"Model",
       {{"dim", &c.dim, "D", "width", 1, kMost},
        {"layers", &c.layers, "N", "blocks", 1, 4096},
        {"heads", &c.heads, "N", "attention heads; divides --dim", 1, 4096},
        {"seed", &c.seed, "N", "of libtorch's generator, for the first weights"},
        {"init_weights", &c.init_weights, "PATH", "first weights: safetensors or a checkpoint"}}},
      {"Training",
       {{"optimizer", &c.optimizer, "adamw|muon", "muon: for hidden matrices, AdamW for the rest"},
        {"steps", &c.steps, "N", "steps to train", 0, 1e12},
        {"lr", &c.lr, "X", "learning rate", 0, 1e3},
        {"lr_schedule", &c.lr_schedule, "constant|cosine|linear|wsd",
         "after warm-up; all but constant fall to --min-lr at --steps, wsd in its last --decay-steps"},
        {"warmup", &c.warmup, "N", "steps in which the rate rises", 0, 1e12},
        {"min_lr", &c.min_lr, "X", "where schedules that fall end; not given: --lr / 10", 0, 1e3},
        {"decay_steps", &c.decay_steps, "N", "of wsd: last steps, in which the rate falls linearly", 0, 1e12},
        {"adam_beta1", &c.adam_beta1, "X", "of AdamW's first moment, less than 1", 0, 1},
        {"adam_beta2", &c.adam_beta2, "X", "of AdamW's second moment, less than 1", 0, 1},
        {"adam_eps", &c.adam_eps, "X", "added to the root of AdamW's second moment", 0, 1},
        {"weight_decay", &c.weight_decay, "X", "of parameters of two and more dimensions", 0, 1e3},
        {"grad_clip", &c.grad_clip, "X", "largest norm of the gradients; 0: any", 0, 1e9},
        {"precision", &c.precision, "fp32|bf16", "to compute in"}}},
      {"Machine",
       {{"device", &c.device, "cpu|cuda",
         "cuda: rank r (of a job's processes: the r-th of its host) computes on GPU r, in builds with "
         "-DSHERD_TORCH_CUDA=ON; not run on a GPU yet"},
        {"threads", &c.threads, "N", "libtorch's threads per rank; 0: cores / ranks", 0, 1024},
        {"memory_limit", &c.memory_limit, "BYTES",
         "that a rank holds, kept ones included, on CPUs activations, too, with suffix K, M or G; 0: none", 0,
         1e15},
        {"comm_timeout", &c.comm_timeout, "SECONDS", "longest wait for another rank, greater than 0", 0, 1e6},
        {"flight_recorder", &c.flight_recorder, "FOLDER",
         "where each rank writes its last collectives when the run fails; `sherd trace FOLDER` compares "
         "them"}}},
      {"Output",
       {{"eval_every", &c.eval_every, "N",
         "evaluate on held-out text every N steps and after the last; 0: never", 0, 1e12},
        {"eval_windows", &c.eval_windows, "N", "held-out windows per evaluation, at equal distances; 0: all",
         0, 1e12},
        {"metrics", &c.metrics, "FILE", "a JSON line for each step"},
        {"trace", &c.trace, "FILE",
         "what every rank's streams of sherd's did when, for chrome://tracing or Perfetto; libtorch's "
         "operations "
         "are in none of them"},
        {"timeline", &c.timeline, "FILE", "the same as a picture (SVG)"},
        {"trace_steps", &c.trace_steps, "N", "steps of those two: from the run's third on, or its last ones",
         1, 1000},
        {"save", &c.save, "DIR", "a checkpoint at the end"},
        {"resume", &c.resume, "DIR", "resume a checkpoint, on any number of ranks"},
        {"export_weights", &c.export_weights, "PATH", "the trained weights as safetensors, f32"},
        {"quiet", &c.quiet, "", "no lines on stdout"}}}};
}

void check(const Config& c, std::vector<std::string>& problems) {
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
  o.prefetch = static_cast<int>(c.prefetch);
  if (c.precision == "bf16") o.compute_dtype = sherd::DType::bf16;
  return o;
}

sherd::OptimizerOptions optimizer_options(const Config& c) {
  sherd::OptimizerOptions o;
  o.adamw = {.beta1 = c.adam_beta1, .beta2 = c.adam_beta2, .eps = c.adam_eps};
  o.weight_decay = c.weight_decay;
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
          .title = fmt::format("libtorch_gpt, {} rank{}, {}, {}", c.ranks, c.ranks == 1 ? "" : "s", c.strategy,
                               c.optimizer)};
}

}  // namespace libtorch_gpt
