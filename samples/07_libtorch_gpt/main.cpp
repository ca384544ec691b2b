// libtorch_gpt: train_gpt's model as libtorch modules (gpt.h), trained by sherd. `libtorch_gpt --help-all` lists
// the flags, which are train_gpt's as far as they mean something here. docs/libtorch.md explains it line by
// line.
#include "config.h"
#include "gpt.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include <sherd/base/program.h>
#include <sherd/checkpoint/resume.h>
#include <sherd/checkpoint/same_copies.h>
#include <sherd/checkpoint/saver.h>
#include <sherd/checkpoint/weights.h>
#include <sherd/comm/backend.h>
#include <sherd/comm/bootstrap/bootstrap.h>
#include <sherd/comm/launcher.h>
#include <sherd/fsdp/accumulate.h>
#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/device/build.h>
#include <sherd/optim/schedule.h>
#include <sherd/torch/device.h>
#include <sherd/torch/device_memory.h>
#include <sherd/torch/fully_shard.h>
#include <sherd/torch/generator.h>
#include <sherd/torch/optimizer.h>
#include <sherd/train/data/data.h>
#include <sherd/train/report/metrics.h>
#include <sherd/train/report/trace_output.h>
#include <sherd/train/settings/command_line.h>
#include <sherd/train/settings/config_file.h>

#include "train_gpt/settings/optimizer_config.h"
#include "train_gpt/settings/run_options.h"

namespace libtorch_gpt {
namespace {

using Clock = std::chrono::steady_clock;

double ms(Clock::duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

// When the device got here.
std::shared_ptr<Clock::time_point> stamp(sherd::Stream& stream) {
  auto at = std::make_shared<Clock::time_point>();
  stream.submit("timestamp",
                [at](sherd::ExecutionContext& context) { context.after([at] { *at = Clock::now(); }); });
  return at;
}

/// One rank: its model, its data, its loop.
class Trainer {
 public:
  Trainer(sherd::RankContext& rank, const Config& config, std::shared_ptr<const sherd::TokenWindows> windows)
      : rank_(rank), config_(config), windows_(std::move(windows)) {
    {
      // libtorch has one random generator for all threads: each rank draws its weights from one of its own.
      const sherd::torch::ThreadGenerator random(config.seed);
      model_ = Gpt(Shape{config.dim, config.layers, config.heads, config.seq,
                         config.recompute == train_gpt::Recompute::blocks});
    }
    sherd::ModuleBase& root = sherd::torch::root_of(*model_);
    for (auto& [name, p] : root.named_parameters())  // q, k and v are matrices of their own
      if (name.ends_with("qkv.weight")) p.set_row_blocks({config.dim, config.dim, config.dim});
    sherd::torch::route(*model_, train_gpt::routing_options(config));
    const sherd::DeviceMesh mesh(rank.world, mesh_of(config));
    sherd::torch::fully_shard<BlockImpl>(*model_, mesh, shard_options(config),
                                         {.prefetch = static_cast<int>(config.prefetch)});
    if (!config.init_weights.empty())
      for (const std::string& note : sherd::import_weights(root, config.init_weights).notes)
        if (rank.world->rank() == 0) sherd::print_error("libtorch_gpt", note);
    optimizer_.emplace(*model_, train_gpt::optimizer_options(config));
    if (!config.resume.empty()) {
      const auto resumed = sherd::resume(config.resume, root, &*optimizer_);
      step_ = resumed.report.training.step;
    }
  }

  int64_t step() const { return step_; }
  sherd::ModuleBase& root() { return sherd::torch::root_of(*model_); }

  sherd::StepResult train_step() {
    const auto begin = Clock::now();
    const sherd::CommCounts before = rank_.world->counts();
    const int64_t micro = sequences_at_once();
    double loss = 0;
    for (int64_t m = 0; m < config_.grad_accum; ++m) {
      const int64_t first = step_ * config_.batch + (rank_.world->rank() * config_.grad_accum + m) * micro;
      std::vector<int64_t> windows;
      for (int64_t i = 0; i < micro; ++i) windows.push_back(windows_->train_window(first + i, config_.seed));
      const auto [inputs, targets] = batch(windows);
      std::optional<sherd::Accumulate> more;
      if (m + 1 < config_.grad_accum) more.emplace(root());
      const Tensor losses = losses_of(inputs, targets, at::Reduction::Sum);
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
    r.lr = sherd::learning_rate(schedule_of(config_), step_);
    const auto reduced = stamp(stream);
    optimizer_->step(r.lr);
    const auto updated = stamp(stream);
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
    r.step_ms = ms(Clock::now() - begin);
    r.optim_ms = ms(*updated - *reduced);
    r.tokens_per_s = tokens / r.step_ms * 1e3;
    r.comm = rank_.world->counts();
    for (auto& [name, count] : before) {
      r.comm[name].calls -= count.calls;
      r.comm[name].bytes -= count.bytes;
    }
    r.peak_bytes = rank_.device->allocator().peak_bytes();
    return r;
  }

  /// The mean over held-out windows (--eval-windows), of which each rank takes its share. Collective.
  double evaluate() {
    const std::vector<int64_t> windows = windows_->evaluation_windows(*config_.eval_windows);
    const auto held = static_cast<int64_t>(windows.size());
    const int64_t ranks = config_.ranks, micro = sequences_at_once();
    const int64_t share = (held + ranks - 1) / ranks;
    const int64_t begin = std::min(held, rank_.world->rank() * share), end = std::min(held, begin + share);
    const torch::NoGradGuard no_grad;
    double sum = 0;
    // Every rank runs as many forwards, because they unshard weights; those after its share are not counted.
    for (int64_t at = 0; at < share; at += micro) {
      std::vector<int64_t> rows;
      for (int64_t i = 0; i < micro; ++i)
        rows.push_back(windows[static_cast<size_t>(std::min(begin + at + i, held - 1))]);
      const auto [inputs, targets] = batch(rows);
      const int64_t counted = std::clamp<int64_t>(end - (begin + at), 0, std::min(micro, share - at));
      sum += losses_of(inputs, targets, at::Reduction::None)
                 .slice(0, 0, counted * config_.seq)
                 .sum(torch::kDouble)
                 .item<double>();
    }
    const sherd::Tensor all = sherd::Tensor::empty(*rank_.device, {1}, sherd::DType::f64, "metrics");
    sherd::Stream& stream = rank_.device->compute();
    sherd::ops::copy_from_host(stream, all, &sum, sizeof(sum));
    rank_.world->all_reduce(stream, all);
    sherd::ops::copy_to_host(stream, &sum, all);
    return sum / static_cast<double>(held * config_.seq);
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
  int64_t sequences_at_once() const { return config_.batch / (config_.ranks * config_.grad_accum); }

  std::pair<Tensor, Tensor> batch(const std::vector<int64_t>& windows) const {
    const Tensor inputs = torch::empty({static_cast<int64_t>(windows.size()), config_.seq}, torch::kInt),
                 targets = torch::empty_like(inputs);
    for (size_t i = 0; i < windows.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      windows_->fill(windows[i], inputs[row].data_ptr<int32_t>(), targets[row].data_ptr<int32_t>());
    }
    const torch::Device place = sherd::torch::device_of(*rank_.device);
    return {inputs.to(torch::kLong).to(place), targets.to(torch::kLong).to(place)};
  }

  Tensor losses_of(const Tensor& inputs, const Tensor& targets, at::Reduction::Reduction reduction) {
    const Tensor logits = model_(inputs).to(torch::kFloat);
    return torch::cross_entropy_loss(logits.view({-1, Shape::kVocab}), targets.view({-1}), {}, reduction);
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
  if (windows && config.eval_every > 0 && windows->held_out_count() == 0)
    throw sherd::IoError(windows->summary() +
                         ": too few to hold windows out for --eval-every: 50 windows or more are needed");
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int threads = config.threads > 0 ? static_cast<int>(config.threads)
                                         : std::max(1, cores / static_cast<int>(config.ranks));
  at::set_num_threads(threads);
  sherd::launch(
      static_cast<int>(config.ranks), launch_options(config, threads), [&](sherd::RankContext& rank) {
        at::set_num_threads(threads);                      // of this thread
        std::optional<sherd::torch::DeviceMemory> memory;  // so that figures and limits include activations
        if (rank.device->kind() == sherd::DeviceKind::cpu) memory.emplace(rank.device);
        sherd::TraceOutput trace(rank, trace_options(config));
        if (windows && config.comm != sherd::BackendKind::local)
          sherd::require_same_copies(*rank.world, windows->copies());
        Trainer trainer(rank, config, windows);
        std::optional<sherd::MetricsWriter> metrics;
        if (rank.world->rank() == 0 && !config.metrics.empty())
          metrics.emplace(config.metrics, settings, !config.resume.empty());
        while (trainer.step() < config.steps) {
          trace.before_step(trainer.step() + 1);
          sherd::StepResult r = trainer.train_step();
          if (config.eval_every > 0 && (r.step % config.eval_every == 0 || r.step == config.steps))
            r.eval_loss = trainer.evaluate();
          if (metrics) metrics->write(r);
          if (rank.world->rank() == 0 && !config.quiet &&
              (r.step % 10 == 0 || r.step == 1 || r.step == config.steps || r.eval_loss))
            std::printf("step %lld: loss %.4f, gradient norm %.3f, %.0f tokens/s%s\n",
                        static_cast<long long>(r.step), r.loss, static_cast<double>(r.grad_norm),
                        r.tokens_per_s,
                        r.eval_loss ? fmt::format(", held-out loss {:.4f}", *r.eval_loss).c_str() : "");
        }
        if (metrics && !metrics->failure().empty()) throw sherd::IoError(metrics->failure());
        trainer.finish();
        for (const std::string& line : trace.write())
          if (rank.world->rank() == 0 && !config.quiet) std::puts(line.c_str());
      });
}

int main_of(int argc, char** argv) {
  Config config;
  const std::vector<sherd::FieldGroup> groups = fields_of(config);
  try {
    std::vector<std::string> problems;
    const sherd::GivenFlags given = sherd::read_flags(argc, argv, groups, problems);
    if (given.help) {
      std::fputs(sherd::help_text("libtorch_gpt: train_gpt's model as libtorch modules, trained by sherd\n\n",
                                  groups, given.help_all)
                     .c_str(),
                 stdout);
      return 0;
    }
    if (given.version) {
      std::puts((sherd::version_text("libtorch_gpt") + "libtorch " TORCH_VERSION).c_str());  // a line each
      return 0;
    }
    if (!given.config_file.empty()) problems.push_back("--config is train_gpt's; give flags");
    std::set<std::string_view> bad = sherd::set_given(given, problems);
    // The processes of a job are its ranks.
    if (config.comm != sherd::BackendKind::local && !given.has("ranks"))
      config.ranks = std::max<int64_t>(config.ranks, sherd::job_in_environment().processes);
    bad.merge(sherd::check_values(groups, given, problems));
    train_gpt::TrainConfig checked = config;
    if (!config.resume.empty()) checked.init_weights.clear();  // the checkpoint's weights replace them
    train_gpt::check_rules(checked, bad, {given, [&](std::string_view name) { return given.has(name); }},
                           problems);
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
  sherd::report_file_size_limit();
  return libtorch_gpt::main_of(argc, argv);
}
