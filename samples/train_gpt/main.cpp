// train_gpt: trains a byte-level GPT on CPUs or GPUs. `train_gpt --help` lists the flags.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>

#include <sherd/comm/launcher.h>
#include <sherd/kernels/device/program.h>
#include <sherd/train/gemm_ceiling.h>
#include <sherd/train/loss_svg.h>
#include <sherd/train/metrics.h>
#include <sherd/train/process_memory.h>
#include <sherd/train/report.h>
#include <sherd/train/saving.h>
#include <sherd/train/step_progress.h>
#include <sherd/train/trace_output.h>

#include "config.h"
#include "generate.h"
#include "launch_flags.h"
#include "model_source.h"
#include "output.h"
#include "run_options.h"
#include "sample_text.h"
#include "trainer.h"
#include "windows.h"

namespace train_gpt {
namespace {

constexpr int kFailure = 1, kUsage = 2;

// @returns what is wrong with the end of it, in words; empty = nothing. The same on every rank, but for what
// rank 0 alone writes.
std::string train(Trainer& trainer, const TrainConfig& config, sherd::TraceOutput& trace, Output* out,
                  std::string& doing) {
  sherd::StepProgress progress =
      sherd::StepProgress::on_stdout(out == nullptr || config.quiet, config.steps, trainer.step());
  sherd::Saving saving(trainer.saved_run(), saving_options(config));
  std::optional<double> waited;  // for the latest checkpoint, in ms
  if (out) {
    out->first = trainer.step();
    out->flops_per_token = trainer.flops_per_token();
    out->begin(config, trainer.step());
    sherd::read_losses(config.metrics, out->first, out->losses, out->held_out);
  }
  double loss = 0;  // of the latest step
  const auto tell = [&](PendingStep step, bool evaluate) {
    sherd::StepResult result = trainer.collect(std::move(step));
    loss = result.loss;
    if (evaluate) result.eval_loss = trainer.evaluate();
    if (out) {
      out->losses.push_back(result.loss);
      if (result.eval_loss) out->held_out.emplace_back(result.step, *result.eval_loss);
      // Before the step is saved: a run that is killed in between must not miss the line for good.
      out->write_step(result, config);
      progress.step(result);
    }
    saving.told(result.step);
  };
  std::optional<PendingStep> before;  // under way: the device is never without work while the host tells
  std::string stopped;                // why training ended before its last step
  while (trainer.step() < config.last_step() && stopped.empty()) {
    trace.before_step(trainer.step() + 1);
    doing = fmt::format("training step {}", trainer.step() + 1);
    PendingStep now = trainer.issue_step();
    const int64_t step = trainer.step();
    now.result.save_ms = std::exchange(waited, {});
    if (before) tell(*std::exchange(before, {}), false);
    const bool last = step == config.last_step();
    const bool evaluate = config.eval_every > 0 && (step % config.eval_every == 0 || last);
    if (last || evaluate || saving.stops_after(step) || trainer.next_skip_is_the_last()) {
      tell(std::move(now), evaluate);
    } else {
      before = std::move(now);
    }
    // All ranks leave together, and what is being saved is not lost: nothing is thrown.
    stopped = trainer.too_many_skipped();
    if (!stopped.empty()) saving.ends_with(step);
    waited = saving.after_step(step);
    for (const std::string& line : saving.take_lines()) progress.note(line);
    for (const std::string& line : saving.take_warnings())
      if (out) warn(line);
  }
  if (out) out->seconds = progress.seconds();
  std::vector<std::string> wrong;
  if (!stopped.empty()) wrong.push_back(stopped);
  if (!std::isfinite(loss))
    wrong.push_back(fmt::format("the loss of step {} is {}", trainer.step(),
                                std::isnan(loss) ? "no number" : "infinite"));
  if (!trainer.weights_are_finite())
    wrong.push_back(
        "weights are infinite or no number: go on from an earlier checkpoint, with a smaller --lr");
  if (!saving.last_failure().empty())
    wrong.push_back("its last checkpoint is missing: " + saving.last_failure());
  if (out)
    for (std::string& failure : out->finish()) wrong.push_back(std::move(failure));
  return wrong.empty() ? "" : fmt::format("training ended, but {}", fmt::join(wrong, "; "));
}

void summarise(Trainer& trainer, const TrainConfig& config, Output* out) {
  const std::vector<sherd::RankMemory> memory = trainer.memory();
  const sherd::MemoryGrowth growth =
      sherd::memory_growth(out ? out->start : sherd::ProcessMemory{}, *trainer.world());
  if (!out) return;
  sherd::Summary s;
  s.loss_unit = loss_unit(config);
  s.first_loss = out->losses[static_cast<size_t>(out->first)];
  s.last_loss = out->losses.back();
  if (!out->held_out.empty()) s.eval_loss = out->held_out.back().second;
  s.steps = trainer.step() - out->first;
  s.seconds = out->seconds;
  s.tokens_per_s = static_cast<double>(s.steps * config.batch * config.seq) / out->seconds;
  s.ranks = memory;
  s.process = growth;
  s.replicated = trainer.replicated_memory();
  out->say("\n{}", sherd::format_summary(s));
  if (!config.tokens.empty()) out->say("{} of the tokens\n", trainer.progress_in_data());
  if (!config.loss_svg.empty()) sherd::write_loss_svg(config.loss_svg, out->losses, out->held_out, loss_unit(config));
}

void say_resumed(const Trainer& trainer, const TrainConfig& config, const Output& out) {
  const sherd::Resumed& resumed = *trainer.resumed();
  const auto list = [](const std::vector<std::string>& names) {
    return fmt::format("{}", fmt::join(names, ", "));
  };
  for (const std::string& reason : resumed.skipped) warn("passed over: " + reason);
  if (!resumed.skipped.empty()) warn("going on from " + resumed.path.string());
  const auto& report = resumed.report;
  if (!report.started_anew.empty()) warn("state that starts from zero: " + list(report.started_anew));
  if (!report.left_out.empty()) warn("state that was left out: " + list(report.left_out));
  for (const std::string& line : trainer.differences()) warn(line);
  if (!out.inherited.empty()) out.say("settings from the checkpoint: {}\n", fmt::join(out.inherited, ", "));
  if (config.resume_parts == "model") {
    out.say("weights from {}\n\n", resumed.path.string());
    return;
  }
  if (config.eval_only || config.sample_only) {
    out.say("weights after {} steps from {}\n\n", trainer.step(), resumed.path.string());
    return;
  }
  out.say("resumed from {}: {} steps are done, of {}\n\n", resumed.path.string(), trainer.step(),
          config.steps);
  if (trainer.step() >= config.last_step()) out.say("nothing is left to train\n");
}

// --eval-only. @returns as train().
std::string evaluate(Trainer& trainer, const TrainConfig& config, int64_t windows, Output* out) {
  const double loss = trainer.evaluate();
  if (!out) return "";
  out->begin(config, trainer.step());
  out->write_evaluation(trainer.step(), loss);
  // Asked for by itself: --quiet does not mean it.
  print(fmt::format("held-out loss {:.6f} {}, perplexity {:.4f}, over {} windows of {}\n", loss, loss_unit(config),
                    std::exp(loss), windows, config.seq));
  std::vector<std::string> wrong = out->finish();
  if (!std::isfinite(loss)) wrong.push_back("the loss is not finite");
  return wrong.empty() ? "" : fmt::format("evaluation ended, but {}", fmt::join(wrong, "; "));
}

// Of a --model.
void generate(Trainer& trainer, const TrainConfig& config, Output* out) {
  const std::vector<int32_t> prompt = parse_prompt_tokens(config.prompt_tokens, vocabulary(config));
  if (!out) {
    trainer.generate(prompt, config.sample_bytes());
    return;
  }
  // Asked for by itself: --quiet does not mean it.
  print(out->quiet ? "" : "\n" + sample_heading());
  ShownTokens shown(config, [](const std::string& text) {
    for (const char c : text) print(static_cast<unsigned char>(c) < 0x80 ? shown_byte(c) : std::string(1, c));
  });
  for (const int32_t token : prompt) shown.add(token);
  trainer.generate(prompt, config.sample_bytes(), [&](int32_t token) { shown.add(token); });
  shown.finish();
  print("\n");
}

// As it is made, so that a reader need not wait for all of it.
void sample(Trainer& trainer, const TrainConfig& config, Output* out) {
  if (!config.model.empty()) return generate(trainer, config, out);
  if (!out) {
    trainer.sample(config.start_of_text(), config.sample_bytes());
    return;
  }
  // Asked for by itself: --quiet does not mean it.
  std::string head = (out->quiet ? "" : "\n") + sample_heading();
  const std::string prompt = config.start_of_text();
  for (const char c : prompt) head += shown_byte(c);
  print(head);
  trainer.sample(prompt, config.sample_bytes(), [](char c) { print(shown_byte(c)); });
  print("\n");
}

// Everything a rank does; `doing` says what it is at. @returns as train().
std::string run_rank(sherd::RankContext& rank, const TrainConfig& config,
                     const std::shared_ptr<const sherd::TokenWindows>& windows, Output* out,
                     std::string& doing) {
  std::string wrong;
  doing = "building the model";
  sherd::TraceOutput trace(rank, trace_options(config));
  if (out && windows) out->say("{}\n", windows->summary());
  if (config.trains() && config.measure_peak && !(config.metrics.empty() && config.log_dir.empty())) {
    doing = "timing products of matrices";
    const double ceiling = sherd::gemm_ceiling(*rank.world, *rank.device, dtype_named(config.precision));
    if (out) out->ceiling = ceiling;
    doing = "building the model";
  }
  Trainer trainer(rank, config, windows);
  if (out) out->say("{}\n\n{}\n", with_flags(trainer.routing()), with_flags(trainer.describe()));
  if (config.explain_plan && out) out->say("{}\n", trainer.explain_plan());
  if (out && !trainer.ignored_tensors().empty())
    out->say("not part of the model, left out: {}\n", fmt::join(trainer.ignored_tensors(), ", "));
  if (out && trainer.resumed()) say_resumed(trainer, config, *out);
  if (config.eval_only) {
    doing = "evaluating";
    wrong = evaluate(trainer, config, windows->held_out_count(), out);
  } else if (config.sample_only) {
    // Below, as at the end of every run.
  } else if (trainer.step() < config.last_step()) {
    wrong = train(trainer, config, trace, out, doing);
    doing = "writing the results";
    const std::vector<std::string> traced = trace.write();
    summarise(trainer, config, out);
    if (out)
      for (const std::string& line : traced) out->say("{}\n", line);
  } else if (!config.save.empty()) {
    doing = "saving";
    sherd::Saving saving(trainer.saved_run(), saving_options(config));
    saving.save_now();
    for (const std::string& line : saving.take_lines())
      if (out) out->say("{}\n", line);
    for (const std::string& line : saving.take_warnings())
      if (out) warn(line);
  }
  if (!config.export_weights.empty()) {
    doing = "exporting the weights";
    trainer.export_weights();
    if (out) out->say("weights written to {}\n", config.export_weights);
  }
  if (!config.export_hf.empty()) {
    doing = "writing the model's folder";
    trainer.export_folder();
    if (out) out->say("model written to {}\n", config.export_hf);
  }
  if (config.sample_bytes() > 0) {
    doing = "sampling";
    sample(trainer, config, out);
  }
  return wrong;
}

constexpr const char* kLessMemory =
    "make --batch, --seq or --dim smaller, split the batch with --grad-accum, or shard more (--strategy "
    "zero3)";

// The system's own words say neither what for, nor what to do.
template <class Work>
auto in_words(const std::string& doing, Work work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    throw sherd::OutOfMemory(
        fmt::format("out of memory while {}: the system gave no more; {}", doing, kLessMemory));
  } catch (const std::system_error& e) {
    if (e.code() != std::errc::resource_unavailable_try_again) throw;
    throw sherd::Error(
        fmt::format("cannot start a thread while {}: {}; the limit of processes and threads is reached "
                    "(ulimit -u, or the "
                    "container's) or of memory (ulimit -v): give fewer --ranks or --threads 1, or raise it",
                    doing, e.code().message()));
  }
}

// @returns as train().
std::string run(const CommandLine& line) {
  const TrainConfig& config = line.config;
  const sherd::ProcessMemory start = sherd::ProcessMemory::now();
  check_outputs(config);
  sherd::check_save_folder(save_folder(config));
  std::shared_ptr<const sherd::TokenWindows> windows;
  if (config.trains() || config.eval_only) {
    windows = open_windows(config);
    if ((config.eval_every > 0 || config.eval_only) && windows->held_out_count() == 0)
      throw sherd::IoError(fmt::format(
          "{}: too few to hold windows of {} out for {}: 50 windows or more are needed, or --valid-tokens",
          windows->summary(), config.seq, config.eval_only ? "--eval-only" : "--eval-every"));
  }
  const sherd::LaunchOptions launch = launch_options(config);
  std::mutex mutex;
  std::string wrong;
  const auto one_rank = [&](sherd::RankContext& rank) {
    std::optional<Output> output;
    if (rank.world->rank() == 0) output.emplace(line, start);
    if (output && !line.comm_choice.empty()) output->say("{}\n", line.comm_choice);
    std::string doing;
    const std::string at_the_end =
        in_words(doing, [&] { return run_rank(rank, config, windows, output ? &*output : nullptr, doing); });
    const std::lock_guard lock(mutex);
    if (output || wrong.empty()) wrong = at_the_end;  // rank 0 knows the most
  };
  in_words("starting the ranks", [&] {
    sherd::launch(static_cast<int>(config.ranks), launch, one_rank);
    return 0;
  });
  return wrong;
}

}  // namespace

int main_of(int argc, const char* const* argv) {
  CommandLine line;
  try {
    line = parse_config(argc, argv);
    if (!line.help) check_launch(line.config);
  } catch (const std::exception& e) {
    warn(e.what());
    const bool missing_file = dynamic_cast<const sherd::IoError*>(&e) != nullptr;
    return missing_file ? kFailure : kUsage;
  }
  if (line.help) {
    print(*line.help);
    return sherd::finish_stdout("train_gpt") ? 0 : kFailure;
  }
  int code = 0;
  try {
    if (const std::string wrong = run(line); !wrong.empty()) {
      std::fflush(stdout);
      warn(wrong);
      code = kFailure;
    }
  } catch (const sherd::NotCompiled& e) {  // it can be seen from the flags alone
    warn(e.what());
    return kUsage;
  } catch (const std::exception& e) {
    std::fflush(stdout);
    warn(e.what());
    return kFailure;
  }
  return sherd::finish_stdout("train_gpt") ? code : kFailure;
}

}  // namespace train_gpt

int main(int argc, char** argv) {
  sherd::bound_spinning(argv);
  sherd::reserve_standard_streams();
  return train_gpt::main_of(argc, argv);
}
