// libtorch_gpt: train_gpt's model as libtorch modules (gpt.h), trained by sherd. `libtorch_gpt --help` lists
// the flags, which are train_gpt's as far as they mean something here. docs/libtorch.md explains it line by
// line.
#include "gpt.h"

#include <cstdio>
#include <optional>
#include <thread>

#include <sherd/checkpoint/resume.h>
#include <sherd/checkpoint/saver.h>
#include <sherd/checkpoint/weights.h>
#include <sherd/comm/backend.h>
#include <sherd/comm/launcher.h>
#include <sherd/fsdp/accumulate.h>
#include <sherd/kernels/device/program.h>
#include <sherd/kernels/ops/copy.h>
#include <sherd/optim/schedule.h>
#include <sherd/torch/fully_shard.h>
#include <sherd/torch/generator.h>
#include <sherd/torch/optimizer.h>
#include <sherd/train/command_line.h>
#include <sherd/train/config_file.h>
#include <sherd/train/data.h>
#include <sherd/train/metrics.h>

namespace libtorch_gpt {
namespace {

struct Config {
  std::string data, init_weights, export_weights, metrics, save, resume;
  std::string comm = "local", strategy = "optim_grads_params", optimizer = "adamw", precision = "fp32",
              lr_schedule = "constant";
  int64_t seq = 128, batch = 16, grad_accum = 1, ranks = 1, threads = 0, steps = 100, warmup = 0;
  int64_t dim = 128, layers = 4, heads = 4, prefetch = 1;
  uint64_t seed = 0;
  double lr = 3e-3, weight_decay = 0.1, grad_clip = 1;
  bool reshard_after_forward = true, quiet = false;
};

std::string_view canonical_strategy(std::string_view word) {
  constexpr std::string_view names[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
  return word.size() == 5 && word.starts_with("zero") && word[4] >= '0' && word[4] <= '3'
             ? names[word[4] - '0']
             : word;
}

std::vector<sherd::FieldGroup> fields_of(Config& c) {
  constexpr double kMost = 1 << 20;
  return {
      {"Data",
       {{"data", &c.data, "PATH", "text: a file, or a folder with all files below it"},
        {"seq", &c.seq, "T", "bytes of text per sequence", 1, kMost},
        {"batch", &c.batch, "N", "sequences per step over all ranks", 1, kMost},
        {"grad_accum", &c.grad_accum, "N", "microbatches each rank splits its sequences into", 1, kMost}}},
      {"Ranks and sharding",
       {{"ranks", &c.ranks, "N", "all ranks", 1, 1024},
        {"comm", &c.comm, "local|mpi", "ranks are threads of this process, or the processes of mpirun"},
        {"strategy", &c.strategy, "no_shard|optim|optim_grads|optim_grads_params",
         "what is sharded; also known as zero0, zero1, zero2, zero3", 0, 0, canonical_strategy},
        {"reshard_after_forward", &c.reshard_after_forward, "true|false",
         "give weights back between forward and backward"},
        {"prefetch", &c.prefetch, "N", "blocks gathered ahead", 0, 64}}},
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
        {"lr_schedule", &c.lr_schedule, "constant|cosine|linear", "after warm-up"},
        {"warmup", &c.warmup, "N", "steps in which the rate rises", 0, 1e12},
        {"weight_decay", &c.weight_decay, "X", "of parameters of two and more dimensions", 0, 1e3},
        {"grad_clip", &c.grad_clip, "X", "largest norm of the gradients; 0: any", 0, 1e9},
        {"precision", &c.precision, "fp32|bf16", "to compute in"}}},
      {"Machine", {{"threads", &c.threads, "N", "libtorch's threads per rank; 0: cores / ranks", 0, 1024}}},
      {"Output",
       {{"metrics", &c.metrics, "FILE", "a JSON line for each step"},
        {"save", &c.save, "DIR", "a checkpoint at the end"},
        {"resume", &c.resume, "DIR", "go on from a checkpoint, on any number of ranks"},
        {"export_weights", &c.export_weights, "PATH", "the trained weights as safetensors, f32"},
        {"quiet", &c.quiet, "", "no lines on stdout"}}}};
}

sherd::FullyShardOptions shard_options(const Config& c) {
  sherd::FullyShardOptions o;
  o.strategy = sherd::parse_strategy(c.strategy);
  o.reshard_after_forward = c.reshard_after_forward;
  o.prefetch = static_cast<int>(c.prefetch);
  if (c.precision == "bf16") o.compute_dtype = sherd::DType::bf16;
  return o;
}

/// One rank: its model, its data, its loop.
class Trainer {
 public:
  Trainer(sherd::RankContext& rank, const Config& config, std::shared_ptr<const sherd::TokenWindows> windows)
      : rank_(rank), config_(config), windows_(std::move(windows)) {
    {
      // libtorch has one random generator for all threads: each rank draws its weights from one of its own.
      const sherd::torch::ThreadGenerator random(config.seed);
      model_ = Gpt(Shape{config.dim, config.layers, config.heads, config.seq});
    }
    sherd::ModuleBase& root = sherd::torch::root_of(*model_);
    const sherd::Algorithm algorithm =
        config.optimizer == "muon" ? sherd::Algorithm::muon : sherd::Algorithm::adamw;
    for (auto& [name, p] : root.named_parameters())  // q, k and v are matrices of their own
      if (name.ends_with("qkv.weight")) p.set_row_blocks({config.dim, config.dim, config.dim});
    sherd::torch::route(*model_, {.optimizer = algorithm});
    const sherd::DeviceMesh mesh(rank.world, {{"shard", static_cast<int>(config.ranks)}});
    sherd::torch::fully_shard<BlockImpl>(*model_, mesh, shard_options(config));
    if (!config.init_weights.empty()) sherd::import_weights(root, config.init_weights);
    optimizer_.emplace(*model_, sherd::OptimizerOptions{.weight_decay = config.weight_decay});
    if (!config.resume.empty()) {
      const auto resumed = sherd::resume(config.resume, root, &*optimizer_);
      step_ = resumed.report.training.step;
    }
  }

  int64_t step() const { return step_; }
  sherd::ModuleBase& root() { return sherd::torch::root_of(*model_); }

  sherd::StepResult train_step() {
    const auto begin = std::chrono::steady_clock::now();
    const sherd::CommCounts before = rank_.world->counts();
    const int64_t micro = config_.batch / (config_.ranks * config_.grad_accum);
    double loss = 0;
    for (int64_t m = 0; m < config_.grad_accum; ++m) {
      const auto [inputs, targets] =
          batch(step_ * config_.batch + (rank_.world->rank() * config_.grad_accum + m) * micro, micro);
      std::optional<sherd::Accumulate> more;
      if (m + 1 < config_.grad_accum) more.emplace(root());
      const Tensor logits = model_(inputs).to(torch::kFloat);
      const Tensor losses = torch::cross_entropy_loss(logits.view({-1, Shape::kVocab}), targets.view({-1}),
                                                      {}, at::Reduction::Sum);
      (losses / static_cast<double>(micro * config_.seq * config_.grad_accum)).backward();
      loss += losses.item<double>();
    }
    const auto stats = sherd::torch::clip_grad_norm(*model_, config_.grad_clip);
    sherd::Stream& stream = rank_.device->compute();
    const sherd::Tensor sum = sherd::Tensor::empty(*rank_.device, {1}, sherd::DType::f64, "metrics");
    sherd::ops::copy_from_host(stream, sum, &loss, sizeof(loss));
    rank_.world->all_reduce(stream, sum);
    sherd::skip_unless_finite(root(), sum);
    sherd::StepResult r;
    r.lr = sherd::learning_rate({.lr = config_.lr,
                                 .warmup = config_.warmup,
                                 .decay = sherd::parse_rate_decay(config_.lr_schedule),
                                 .steps = config_.steps},
                                step_);
    optimizer_->step(r.lr);
    const auto tokens = static_cast<double>(config_.batch * config_.seq);
    sherd::ops::copy_to_host(stream, &loss, sum);
    r.step = ++step_;
    r.loss = loss / tokens;
    const sherd::GradientStats figures = sherd::torch::read_stats(*model_, stats);
    r.grad_norm = figures.norm;
    r.num_zeros = figures.zeros;
    r.skipped_steps = optimizer_->skipped();
    r.skipped = r.skipped_steps > skipped_;
    skipped_ = r.skipped_steps;
    r.step_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    r.tokens_per_s = tokens / r.step_ms * 1e3;
    r.comm = rank_.world->counts();
    for (auto& [name, count] : before) {
      r.comm[name].calls -= count.calls;
      r.comm[name].bytes -= count.bytes;
    }
    r.peak_bytes =
        rank_.device->allocator().peak_bytes();  // libtorch's own memory, activations above all, not included
    return r;
  }

  void finish() {
    if (!config_.save.empty()) {
      sherd::CheckpointSaver saver(rank_.world, sherd::checkpoint_tensors(root(), &*optimizer_),
                                   {.folder = config_.save});
      saver.save({.step = step_,
                  .sequences = step_ * config_.batch,
                  .seed = config_.seed,
                  .info = {{"writer", "libtorch_gpt"}}});
    }
    if (!config_.export_weights.empty()) sherd::export_weights(root(), config_.export_weights);
  }

 private:
  std::pair<Tensor, Tensor> batch(int64_t first, int64_t count) const {
    const Tensor inputs = torch::empty({count, config_.seq}, torch::kInt),
                 targets = torch::empty_like(inputs);
    for (int64_t i = 0; i < count; ++i)
      windows_->fill(windows_->train_window(first + i, config_.seed), inputs[i].data_ptr<int32_t>(),
                     targets[i].data_ptr<int32_t>());
    return {inputs.to(torch::kLong), targets.to(torch::kLong)};
  }

  sherd::RankContext& rank_;
  const Config& config_;
  std::shared_ptr<const sherd::TokenWindows> windows_;
  Gpt model_ = nullptr;
  std::optional<sherd::torch::Optimizer> optimizer_;
  int64_t step_ = 0, skipped_ = 0;
};

void run(const Config& config, const std::string& settings) {
  std::shared_ptr<const sherd::TokenWindows> windows;
  if (config.steps > 0)
    windows = std::make_shared<const sherd::TokenWindows>(sherd::ByteData::load(config.data), config.seq);
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int threads = config.threads > 0 ? static_cast<int>(config.threads)
                                         : std::max(1, cores / static_cast<int>(config.ranks));
  at::set_num_threads(threads);
  const sherd::LaunchOptions launch{.device = {.threads = threads},
                                    .backend = sherd::parse_backend(config.comm)};
  sherd::launch(static_cast<int>(config.ranks), launch, [&](sherd::RankContext& rank) {
    at::set_num_threads(threads);  // of this thread
    Trainer trainer(rank, config, windows);
    std::optional<sherd::MetricsWriter> metrics;
    if (rank.world->rank() == 0 && !config.metrics.empty())
      metrics.emplace(config.metrics, settings, !config.resume.empty());
    while (trainer.step() < config.steps) {
      const sherd::StepResult r = trainer.train_step();
      if (metrics) metrics->write(r);
      if (rank.world->rank() == 0 && !config.quiet &&
          (r.step % 10 == 0 || r.step == 1 || r.step == config.steps))
        std::printf("step %lld: loss %.4f, gradient norm %.3f, %.0f tokens/s\n",
                    static_cast<long long>(r.step), r.loss, static_cast<double>(r.grad_norm), r.tokens_per_s);
    }
    if (metrics && !metrics->failure().empty()) throw sherd::IoError(metrics->failure());
    trainer.finish();
  });
}

int main_of(int argc, char** argv) {
  Config config;
  const std::vector<sherd::FieldGroup> groups = fields_of(config);
  try {
    std::vector<std::string> problems;
    const sherd::GivenFlags given = sherd::read_flags(argc, argv, groups, problems);
    if (given.help) {
      std::fputs(
          sherd::help_text("libtorch_gpt: train_gpt's model as libtorch modules, trained by sherd", groups)
              .c_str(),
          stdout);
      return 0;
    }
    if (given.version) {
      std::puts((sherd::version_text("libtorch_gpt") + ", libtorch " TORCH_VERSION).c_str());
      return 0;
    }
    if (!given.config_file.empty()) problems.push_back("--config is train_gpt's; give flags");
    sherd::set_given(given, problems);
    sherd::check_values(groups, given, problems);
    if (config.steps > 0 && config.data.empty())
      problems.push_back("--data is missing: a file or folder of text");
    if (config.dim % config.heads != 0) problems.push_back("--heads does not divide --dim");
    if (config.batch % (config.ranks * config.grad_accum) != 0)
      problems.push_back("--batch is not a multiple of --ranks times --grad-accum");
    sherd::throw_problems(problems);
  } catch (const std::exception& e) {
    sherd::print_error("libtorch_gpt", e.what());
    return 2;
  }
  try {
    run(config, sherd::config_text(groups));
  } catch (const std::exception& e) {
    std::fflush(stdout);
    sherd::print_error("libtorch_gpt", e.what());
    return 1;
  }
  return sherd::finish_stdout("libtorch_gpt") ? 0 : 1;
}

}  // namespace
}  // namespace libtorch_gpt

int main(int argc, char** argv) {
  sherd::reserve_standard_streams();
  return libtorch_gpt::main_of(argc, argv);
}
