// train_gpt: trains a byte-level GPT on CPUs or GPUs. `train_gpt --help-all` lists the flags.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>

#include <sherd/base/printable.h>
#include <sherd/base/program.h>
#include <sherd/comm/abort_on_error.h>
#include <sherd/comm/launcher.h>
#include <sherd/train/guards/stop_request.h>
#include <sherd/train/report/dense_peak.h>
#include <sherd/train/report/gemm_ceiling.h>
#include <sherd/train/report/loss_svg.h>
#include <sherd/train/report/metrics.h>
#include <sherd/train/report/process_memory.h>
#include <sherd/train/report/report.h>
#include <sherd/train/report/trace_output.h>
#include <sherd/train/saving/saving.h>
#include <sherd/train/settings/config_differences.h>

#include "train_gpt/model/model_source.h"
#include "train_gpt/rules/parse_config.h"
#include "train_gpt/run/forecast.h"
#include "train_gpt/run/generate.h"
#include "train_gpt/run/less_memory.h"
#include "train_gpt/run/output.h"
#include "train_gpt/run/same_files.h"
#include "train_gpt/run/same_flags.h"
#include "train_gpt/run/same_program.h"
#include "train_gpt/run/sample_text.h"
#include "train_gpt/run/strategy_choice.h"
#include "train_gpt/run/trainer.h"
#include "train_gpt/run/training_loop.h"
#include "train_gpt/run/windows.h"
#include "train_gpt/settings/launch_flags.h"
#include "train_gpt/settings/optimizer_config.h"
#include "train_gpt/settings/run_options.h"
#include "train_gpt/settings/train_config.h"

namespace train_gpt {
namespace {

constexpr int kFailure = 1, kUsage = 2;
// Exit codes for `sherd run` alone. It would start a failed run again, and see it end well for lack of work; and it waits
// for room on the disk before it starts one again that could not save.
constexpr int kForGood = 3, kUnsaved = 4;

// A name from outside, as `sherd ckpt` shows it.
std::string in_one_line(const std::string& name) { return sherd::printable(name, std::string::npos); }

void summarise(Trainer& trainer, const TrainConfig& config, Output* out) {
  const std::vector<sherd::RankMemory> memory = trainer.memory();
  const sherd::MemoryGrowth growth =
      sherd::memory_growth(out ? out->start : sherd::ProcessMemory{}, *trainer.world());
  if (!out) return;
  sherd::Summary s;
  s.loss_unit = loss_unit(config);
  s.first_loss = out->first_loss;
  s.last_loss = out->last_loss;
  s.eval_loss = out->last_held_out;
  s.eval_sets = out->held_out_sets;
  s.eval_loss_ema = out->held_out_ema;
  s.steps = trainer.step() - out->first;
  s.seconds = out->seconds;
  s.evaluation_seconds = out->evaluation_seconds;
  s.saving_seconds = out->saving_seconds;
  s.tokens_per_s = static_cast<double>(s.steps * config.batch * config.seq) / out->seconds;
  s.ranks = memory;
  s.process = growth;
  s.replicated = trainer.replicated_memory();
  out->say("\n{}", sherd::format_summary(s));
  if (out->plan && s.steps > 0) out->say("{}\n", out->plan->end(out->peak_bytes, out->comm));
  if (config.has_tokens()) out->say("{} of the tokens\n", trainer.progress_in_data());
  if (!config.loss_svg.empty())
    sherd::write_loss_svg(config.loss_svg, out->losses, out->held_out, loss_unit(config));
}

void say_resumed(const Trainer& trainer, const TrainConfig& config, const Output& out) {
  const sherd::Resumed& resumed = *trainer.resumed();
  const std::string from = in_one_line(resumed.path.string());
  const auto list = [](const std::vector<std::string>& names) {
    return in_one_line(fmt::format("{}", fmt::join(names, ", ")));
  };
  for (const std::string& reason : resumed.skipped) warn("passed over: " + in_one_line(reason));
  if (!resumed.skipped.empty()) warn("resuming " + from);
  const auto& report = resumed.report;
  if (!report.started_anew.empty()) warn("state that starts from zero: " + list(report.started_anew));
  if (!report.left_out.empty()) warn("state that was left out: " + list(report.left_out));
  for (const std::string& line : trainer.differences()) warn(line);
  if (!out.inherited.empty()) out.say("settings from the checkpoint: {}\n", list(out.inherited));
  if (config.resume_parts == sherd::ResumeParts::model) {
    out.say("weights from {}\n\n", from);
    return;
  }
  if (config.eval_only || config.sample_only) {
    out.say("weights after {} steps from {}\n\n", trainer.step(), from);
    return;
  }
  out.say("resumed from {}: {} steps are done, of {}\n\n", from, trainer.step(), config.steps);
  if (trainer.step() >= config.last_step()) out.say("nothing is left to train\n");
}

// Returns the work requested after the last step.
std::vector<std::string> what_follows(const TrainConfig& config) {
  std::vector<std::string> flags;
  if (!config.export_weights.empty()) flags.push_back("--export-weights");
  if (!config.export_adapter.empty()) flags.push_back("--export-adapter");
  if (!config.export_hf.empty()) flags.push_back("--export-hf");
  if (config.sample_bytes() > 0) flags.push_back("--sample");
  return flags;
}

// Prints which outputs a stopped run has kept, and which it left out.
void say_stopped(const Trainer& trainer, const TrainConfig& config, const std::string& why,
                 const Output& out) {
  const std::vector<std::string> left_out = what_follows(config);
  const std::string rest =
      left_out.empty() ? "" : fmt::format("; {} left to the run that ends", fmt::join(left_out, ", "));
  if (config.save.empty()) {
    warn(fmt::format("{}: stopped after step {}; nothing was saved: --save is missing{}", why, trainer.step(),
                     rest));
  } else {
    out.say("{}: stopped after step {}; --resume {} continues from there{}\n", why, trainer.step(),
            in_one_line(config.save), rest);
  }
}

// Runs --eval-only. @returns the error at its end; empty without one.
std::string evaluate(Trainer& trainer, const TrainConfig& config, const sherd::TokenWindows& windows,
                     Output* out) {
  const Trainer::Evaluation evaluation = trainer.evaluate();
  const double loss = evaluation.loss;
  if (!out) return "";
  out->begin(config, trainer.step());
  out->write_evaluation(trainer.step(), loss, evaluation.sets);
  // --quiet does not apply: this output was requested by itself.
  const int64_t all = windows.held_out_count();
  int64_t read = 0;
  for (const auto& set : windows.evaluation_sets(evaluation_windows(config)))
    read += static_cast<int64_t>(set.windows.size());
  for (const auto& [name, of_set] : evaluation.sets)
    print(fmt::format("{}: loss {:.6f}, perplexity {:.4f}\n", name, of_set, std::exp(of_set)));
  print(fmt::format("held-out loss {:.6f} {}, perplexity {:.4f}, over {} windows of {}{}\n", loss,
                    loss_unit(config), std::exp(loss), read, config.seq,
                    read < all ? fmt::format(", of {} held out", all) : ""));
  std::vector<std::string> wrong = out->finish();
  if (!std::isfinite(loss)) wrong.push_back("the loss is not finite");
  return wrong.empty() ? "" : fmt::format("evaluation ended, but {}", fmt::join(wrong, "; "));
}

// Prints text as it is made, so that a reader need not wait for all of it.
void generate(Trainer& trainer, const TrainConfig& config, Output* out) {
  const std::vector<int32_t> prompt = prompt_tokens(config);
  if (!out) {
    trainer.generate(prompt, config.sample_bytes());
    return;
  }
  // --quiet: the text alone, as a pipe needs it.
  if (!out->quiet) print("\n" + sample_heading());
  ShownTokens shown(config, [&](const std::string& text) {
    print(out->quiet ? text : config.model.empty() ? shown_bytes(text) : shown_text(text));
  });
  for (const int32_t token : prompt) shown.add(token);
  trainer.generate(prompt, config.sample_bytes(), [&](int32_t token) { shown.add(token); });
  shown.finish();
  if (!out->quiet) print("\n");
}

// The outputs of a run that has ended. Adapters come before --export-hf, which makes them part of the weights.
void export_all(Trainer& trainer, const TrainConfig& config, Output* out, std::string& doing) {
  const auto say = [&](bool written, const char* what, const std::string& path) {
    if (out)
      out->say("{} {} {}\n", what, written ? "written to" : "not written again, complete in",
               in_one_line(path));
  };
  if (!config.export_weights.empty()) {
    doing = "exporting the weights";
    say(trainer.export_weights(), "weights", config.export_weights);
  }
  if (!config.export_adapter.empty()) {
    doing = "exporting the adapters";
    say(trainer.export_adapters(), "adapters", config.export_adapter);
  }
  if (!config.export_hf.empty()) {
    doing = "writing the model's folder";
    say(trainer.export_folder(), "model", config.export_hf);
  }
}

// Runs the trainer of a rank. @returns as run_rank().
std::string use(Trainer& trainer, const TrainConfig& config, const StopSources& sources,
                const sherd::TokenWindows* windows, sherd::TraceOutput& trace, Output* out,
                std::string& doing, std::atomic<int>& code) {
  std::string wrong;
  if (out) out->say("{}\n\n{}\n", with_flags(trainer.routing()), with_flags(trainer.describe()));
  if (out && out->plan) out->say("{}\n", out->plan->start());
  if (config.explain_plan && out) out->say("{}\n", trainer.explain_plan());
  if (const auto& ignored = trainer.ignored_tensors(); out && !ignored.empty())
    out->say("not part of the model, left out: {} tensor{}: {}\n", ignored.size(),
             ignored.size() == 1 ? "" : "s",
             sherd::printable(sherd::shortened({ignored.begin(), ignored.end()}, 5), 2048));
  if (out)
    for (const auto& lines : {out->notes, trainer.weights_notes()})
      for (const std::string& line : lines) warn(line);
  if (out && trainer.resumed()) say_resumed(trainer, config, *out);
  if (config.eval_only) {
    doing = "evaluating";
    wrong = evaluate(trainer, config, *windows, out);
  } else if (config.sample_only) {
    // Below, as at the end of every run.
  } else if (trainer.step() < config.last_step()) {
    TrainingEnd end = train(trainer, config, sources, trace, out, doing);
    wrong = std::move(end.wrong);
    if (end.for_good) code = kForGood;
    if (end.unsaved) code = kUnsaved;
    doing = "writing the results";
    const std::vector<std::string> traced = trace.write();
    summarise(trainer, config, out);
    if (out)
      for (const std::string& line : traced) out->say("{}\n", line);
    // The sender of a signal may not wait long: other requested outputs are left to the run that resumes. A
    // run that has trained all its steps and kept none of them is the only one that can write them.
    const bool over = trainer.step() >= config.last_step();
    if (!end.stopped.empty() && (!over || (end.saved && !what_follows(config).empty()))) {
      if (out && wrong.empty()) say_stopped(trainer, config, end.stopped, *out);
      return wrong;
    }
  } else if (!config.save.empty()) {
    doing = "saving";
    sherd::Saving saving(trainer.saved_run(), saving_options(config));
    saving.save_now();
    for (const std::string& line : saving.take_lines())
      if (out) out->say("{}\n", line);
    for (const std::string& line : saving.take_warnings())
      if (out) warn(line);
  }
  if (config.use_ema) trainer.use_averages();
  export_all(trainer, config, out, doing);
  if (config.sample_bytes() > 0) {
    doing = "sampling";
    generate(trainer, config, out);
  }
  return wrong;
}

// Runs a rank; `doing` names the current activity. @returns as evaluate(); the same on every rank, but for
// what rank 0 alone writes.
std::string run_rank(sherd::RankContext& rank, const RunInputs& inputs, const StopSources& sources,
                     Output* out, std::string& doing, std::atomic<int>& code) {
  const std::shared_ptr<const sherd::TokenWindows>& windows = inputs.windows;
  doing = "comparing the ranks' programs, flags and files";
  if (inputs.config.comm != sherd::BackendKind::local)
    for (const std::string& line : compare_programs(rank, ProgramFacts::of(rank, inputs.config)))
      if (out) warn(line);
  check_same_inputs(rank, inputs);
  doing = "choosing the strategy";
  const auto [config, reason] = choose_strategy(rank, inputs.config);
  if (out && !reason.empty()) out->say("{}\n", reason);
  if (out) out->open(config);
  doing = "building the model";
  sherd::TraceOutput trace(rank, trace_options(config));
  if (out && windows) out->say("{}\n", windows->summary());
  const bool has_metrics = as_rank_0_says(rank, config, !(config.metrics.empty() && config.log_dir.empty()));
  if (config.trains() && has_metrics) {
    doing = "timing products of matrices";
    const auto peak = sherd::dense_peak(*rank.world, rank.device->compute(), sherd::hardware_of(*rank.device),
                                        config.precision, config.tf32);
    if (out) out->dense_peak = peak;
    if (config.measure_peak) {
      const double rate = sherd::gemm_ceiling(*rank.world, *rank.device, config.precision);
      if (out) out->product_rate = rate;
    }
    doing = "building the model";
  }
  std::string unplanned;
  if (config.trains()) {
    doing = "planning the step";
    try {
      if (out && config.plan) out->plan = RunPlan::of(config, *rank.device);
      reserve_memory(config, rank);
    } catch (const sherd::Error& e) {
      unplanned = e.what();
    }
    doing = "building the model";
  }
  try {
    Trainer trainer(rank, config, windows);
    // Behind what ends the run for the same reason.
    if (out && !unplanned.empty()) warn(fmt::format("this run is not planned: {}", unplanned));
    // The trainer is destroyed after the failure is reported, so that the other ranks receive the cause.
    return sherd::abort_on_error(
        *rank.world, [&] { return use(trainer, config, sources, windows.get(), trace, out, doing, code); });
  } catch (const sherd::OutOfMemory& e) {
    if (!config.trains() || !unplanned.empty()) throw;
    rank.world->abort(e.what());  // the others need not wait for the plans
    throw sherd::OutOfMemory(e.what() + remedies_in_words(config, rank));
  }
}

constexpr const char* kLessMemory =
    "make --batch, --seq or --dim smaller, split the batch with --grad-accum, or shard more (--strategy "
    "zero3)";

// The system's own message names neither the purpose nor a remedy.
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

bool has_supervisor() { return std::getenv("SHERD_RUN") != nullptr; }

int told_to_supervisor(int code) { return has_supervisor() ? code : kFailure; }

std::unique_ptr<sherd::StopRequest> take_signals(const TrainConfig& config) {
  if (!config.trains()) return nullptr;
  return std::make_unique<sherd::StopRequest>(
      sherd::StopRequestOptions{.signals = sherd::stop_signals(),
                                .grace = std::chrono::milliseconds(std::llround(config.grace * 1e3)),
                                .second_ends = !has_supervisor(),
                                .program = "train_gpt"});
}

// @returns as run_rank(). @param code the exit code for `sherd run` after a failure.
std::string run(const CommandLine& line, std::atomic<int>& code) {
  const sherd::ProcessMemory start = sherd::ProcessMemory::now();
  const RunInputs inputs = read_inputs(line.config);
  const TrainConfig& config = inputs.config;
  StopSources sources;
  const std::unique_ptr<sherd::StopRequest> signals = take_signals(config);
  sources.signals = signals.get();
  check_outputs(config);
  sherd::check_save_folder(save_folder(config));
  const sherd::LaunchOptions launch = launch_options(config);
  std::mutex mutex;
  std::string wrong;
  const auto one_rank = [&](sherd::RankContext& rank) {
    std::optional<Output> output;
    if (rank.world->rank() == 0) output.emplace(line, start);
    if (output && !line.comm_choice.empty()) output->say("{}\n", line.comm_choice);
    std::string doing;
    const std::string at_the_end = in_words(
        doing, [&] { return run_rank(rank, inputs, sources, output ? &*output : nullptr, doing, code); });
    const std::lock_guard lock(mutex);
    if (output || wrong.empty()) wrong = at_the_end;  // rank 0 has the most information
  };
  in_words("starting the ranks", [&] {
    sherd::launch(static_cast<int>(config.ranks), launch, one_rank);
    return 0;
  });
  if (signals && signals->signal() != 0) signals->release_ignored();
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
  if (line.config.trains()) sherd::report_broken_pipes();
  int code = 0;
  try {
    std::atomic<int> told = kFailure;
    if (const std::string wrong = run(line, told); !wrong.empty()) {
      std::fflush(stdout);
      warn(wrong);
      code = told_to_supervisor(told);
    }
  } catch (const sherd::NotWritten& e) {
    std::fflush(stdout);
    warn(e.what());
    return told_to_supervisor(kUnsaved);
  } catch (const sherd::NotCompiled& e) {  // it can be seen from the flags alone
    warn(e.what());
    return kUsage;
  } catch (const std::exception& e) {
    std::fflush(stdout);
    warn(e.what());
    return kFailure;
  }
  if (sherd::finish_stdout("train_gpt")) return code;
  // Without its reader, the log of a training run loses lines; what was asked for is in files.
  return line.config.trains() && !sherd::stdout_has_reader() ? code : kFailure;
}

}  // namespace train_gpt

/// Memory that is a file may fail outside of calls, which report errors.
extern "C" void end_on_bus_error(int) {
  constexpr char kText[] =
      "train_gpt: a file that is used as memory was made shorter, or its disk failed: --data, --tokens or "
      "the one in "
      "--offload-folder\n";
  (void)!::write(STDERR_FILENO, kText, sizeof kText - 1);
  ::_exit(1);
}

int main(int argc, char** argv) {
  std::signal(SIGBUS, end_on_bus_error);
  sherd::bound_spinning(argv);
  sherd::reserve_standard_streams();
  sherd::report_file_size_limit();
  return train_gpt::main_of(argc, argv);
}
