// train_gpt: trains a byte-level GPT on CPUs or GPUs. `train_gpt --help` lists the flags.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>

#include <sherd/checkpoint/weights.h>
#include <sherd/comm/launcher.h>

#include "config.h"
#include "loss_svg.h"
#include "metrics.h"
#include "progress.h"
#include "saving.h"
#include "trace_output.h"
#include "trainer.h"

namespace train_gpt {
namespace {

constexpr int kFailure = 1, kUsage = 2;

// What rank 0 of the world says and writes; the other ranks, be they threads or processes, have none.
struct Output {
  explicit Output(const TrainConfig& config) : quiet(config.quiet) {
    if (!config.metrics.empty()) metrics.emplace(config.metrics, config);
  }
  bool quiet;
  std::optional<MetricsWriter> metrics;
  std::vector<double> losses;  // of steps 1, 2, ...; NaN for those before a resume
  int64_t first = 0;           // steps before this run
  std::vector<std::pair<int64_t, double>> held_out;
  double seconds = 0;

  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) const {
    if (quiet) return;
    fmt::print(format, std::forward<Args>(args)...);
    std::fflush(stdout);
  }
};

void train(Trainer& trainer, const TrainConfig& config, TraceOutput& trace, Output* out) {
  Progress progress = Progress::on_stdout(out == nullptr || config.quiet, config.steps, trainer.step());
  Saving saving(trainer, config);
  std::optional<double> waited;  // for the latest checkpoint, in ms
  if (out) {
    out->first = trainer.step();
    read_losses(config.metrics, out->first, out->losses, out->held_out);
  }
  const auto tell = [&](PendingStep step, bool evaluate) {
    StepResult result = trainer.collect(std::move(step));
    if (evaluate) result.eval_loss = trainer.evaluate();
    if (out) {
      out->losses.push_back(result.loss);
      if (result.eval_loss) out->held_out.emplace_back(result.step, *result.eval_loss);
      // Before the step is saved: a run that is killed in between must not miss the line for good.
      if (out->metrics) out->metrics->write(result);
      progress.step(result);
    }
    saving.told(result.step);
  };
  std::optional<PendingStep> before;  // under way: the device is never without work while the host tells
  while (trainer.step() < config.last_step()) {
    trace.before_step(trainer.step() + 1);
    PendingStep now = trainer.issue_step();
    const int64_t step = trainer.step();
    now.result.save_ms = std::exchange(waited, {});
    if (before) tell(*std::exchange(before, {}), false);
    const bool last = step == config.last_step();
    const bool evaluate = config.eval_every > 0 && (step % config.eval_every == 0 || last);
    if (last || evaluate || saving.stops_after(step)) {
      tell(std::move(now), evaluate);
    } else {
      before = std::move(now);
    }
    waited = saving.after_step(step);
    for (const std::string& line : saving.take_lines()) progress.note(line);
  }
  if (out) out->seconds = progress.seconds();
}

void summarise(Trainer& trainer, const TrainConfig& config, Output* out) {
  const std::vector<RankMemory> memory = trainer.memory();
  if (!out) return;
  Summary s;
  s.first_loss = out->losses[static_cast<size_t>(out->first)];
  s.last_loss = out->losses.back();
  if (!out->held_out.empty()) s.eval_loss = out->held_out.back().second;
  s.steps = config.last_step() - out->first;
  s.seconds = out->seconds;
  s.tokens_per_s = static_cast<double>(s.steps * config.batch * config.seq) / out->seconds;
  s.ranks = memory;
  s.replicated = trainer.replicated_memory();
  out->say("\n{}", format_summary(s));
  if (!config.loss_svg.empty()) write_loss_svg(config.loss_svg, out->losses, out->held_out);
}

void say_resumed(const Trainer& trainer, const TrainConfig& config, const Output& out) {
  const sherd::Resumed& resumed = *trainer.resumed();
  const auto warn = [](const std::string& line) { fmt::print(stderr, "train_gpt: {}\n", line); };
  const auto list = [](const std::vector<std::string>& names) {
    return fmt::format("{}", fmt::join(names, ", "));
  };
  for (const std::string& reason : resumed.skipped) warn("passed over: " + reason);
  if (!resumed.skipped.empty()) warn("going on from " + resumed.path.string());
  const auto& report = resumed.report;
  if (!report.started_anew.empty()) warn("state that starts from zero: " + list(report.started_anew));
  if (!report.left_out.empty()) warn("state that was left out: " + list(report.left_out));
  for (const std::string& line : trainer.differences()) warn(line);
  if (config.resume_parts == "model") {
    out.say("weights from {}\n\n", resumed.path.string());
    return;
  }
  out.say("resumed from {}: {} steps are done, of {}\n\n", resumed.path.string(), trainer.step(),
          config.steps);
  if (trainer.step() >= config.last_step()) out.say("nothing is left to train\n");
}

void run_rank(sherd::RankContext& rank, const TrainConfig& config,
              const std::shared_ptr<const Windows>& windows, Output* out) {
  TraceOutput trace(rank, config);
  if (out && windows) out->say("{}\n", windows->summary());
  Trainer trainer(rank, config, windows);
  if (out) out->say("{}\n\n{}\n", trainer.routing(), trainer.describe());
  if (config.explain_plan && out) out->say("{}\n", trainer.explain_plan());
  if (out && trainer.resumed()) say_resumed(trainer, config, *out);
  if (trainer.step() < config.last_step()) {
    train(trainer, config, trace, out);
    const std::vector<std::string> traced = trace.write();
    summarise(trainer, config, out);
    if (out)
      for (const std::string& line : traced) out->say("{}\n", line);
  } else if (!config.save.empty()) {
    Saving saving(trainer, config);
    saving.save_now();
    for (const std::string& line : saving.take_lines())
      if (out) out->say("{}\n", line);
  }
  if (!config.export_weights.empty()) {
    trainer.export_weights();
    if (out) out->say("weights written to {}\n", config.export_weights);
  }
  if (config.sample > 0) {
    const std::string text = trainer.sample("\n", config.sample);
    if (out) out->say("\n{}", format_sample(text));
  }
}

// What is written at the end must not turn out impossible then.
void require_writable_folder_of(const std::filesystem::path& path) {
  const std::filesystem::path target = std::filesystem::absolute(path);
  const std::filesystem::path folder = (target.has_filename() ? target : target.parent_path()).parent_path();
  if (!std::filesystem::is_directory(folder) || ::access(folder.c_str(), W_OK | X_OK) != 0)
    throw sherd::IoError(fmt::format("cannot write {}: {} is not a folder that can be written to",
                                     path.string(), folder.string()));
}

void require_writable_file(const std::string& path) {
  if (path.empty()) return;
  require_writable_folder_of(path);
  if (std::filesystem::exists(path) && !std::filesystem::is_regular_file(path))
    throw sherd::IoError(fmt::format("cannot write {}: it exists and is not a regular file", path));
}

int run(const TrainConfig& config) {
  if (!config.export_weights.empty()) {
    require_writable_folder_of(config.export_weights);
    sherd::check_export_path(config.export_weights);
  }
  for (const std::string& path : {config.loss_svg, config.trace, config.timeline})
    require_writable_file(path);
  std::shared_ptr<const Windows> windows;
  if (config.steps > 0) {
    const auto data = ByteData::load(config.data);
    windows = std::make_shared<const Windows>(data, config.seq);
    if (config.eval_every > 0 && windows->held_out_count() == 0)
      throw sherd::IoError(
          fmt::format("{} has {} bytes, too few to hold windows of {} out for --eval-every: 50 windows or "
                      "more are needed",
                      data->source(), data->size(), config.seq));
  }
  sherd::LaunchOptions launch;
  launch.device = config.device;
  launch.comm = config.comm;
  launch.bootstrap = config.bootstrap;
  launch.nccl_exact_order = config.nccl_exact_order;
  launch.nccl_check_calls = config.nccl_check_calls;
  launch.nccl_register_buffers = config.nccl_register_buffers;
  launch.tf32 = config.tf32;
  launch.symmetric_products = config.symmetric_products;
  launch.kernels = config.kernels;
  launch.threads_per_rank = static_cast<int>(config.threads);
  launch.memory_limit = config.memory_limit;
  launch.timeout = std::chrono::milliseconds(std::llround(config.comm_timeout * 1e3));
  sherd::launch(static_cast<int>(config.ranks), launch, [&](sherd::RankContext& rank) {
    std::optional<Output> output;
    if (rank.world->rank() == 0) output.emplace(config);
    run_rank(rank, config, windows, output ? &*output : nullptr);
  });
  return 0;
}

}  // namespace

int main_of(int argc, const char* const* argv) {
  CommandLine line;
  try {
    line = parse_config(argc, argv);
  } catch (const std::exception& e) {
    fmt::print(stderr, "train_gpt: {}\n", e.what());
    const bool missing_file = dynamic_cast<const sherd::IoError*>(&e) != nullptr;
    return missing_file ? kFailure : kUsage;
  }
  if (line.help) {
    fmt::print("{}", *line.help);
    return 0;
  }
  try {
    return run(line.config);
  } catch (const std::exception& e) {
    std::fflush(stdout);
    fmt::print(stderr, "train_gpt: {}\n", e.what());
    return kFailure;
  }
}

}  // namespace train_gpt

int main(int argc, char** argv) { return train_gpt::main_of(argc, argv); }
