#include "train_gpt/run/training_loop.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/program.h>
#include <sherd/comm/abort_on_error.h>
#include <sherd/kernels/ops.h>
#include <sherd/train/guards/loss_spike.h>
#include <sherd/train/guards/slow_rank.h>
#include <sherd/train/report/step_progress.h>
#include <sherd/train/saving/save_retry.h>
#include <sherd/train/saving/saving.h>
#include <sherd/train/settings/duration.h>

#include "train_gpt/settings/launch_flags.h"
#include "train_gpt/settings/run_options.h"

namespace train_gpt {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Loop {
 public:
  Loop(Trainer& trainer, const TrainConfig& config, const StopSources& sources, Output* out)
      : trainer_(trainer),
        config_(config),
        out_(out),
        progress_(
            sherd::StepProgress::on_stdout(out == nullptr || config.quiet, config.steps, trainer.step())),
        signals_(sources.signals),
        began_(sources.start),
        saving_(trainer.saved_run(), guarded(saving_options(config))),
        spikes_(config.loss_spike),
        wall_(std::make_shared<sherd::WallLimit>(sherd::parse_duration(config.max_wall).value_or(0))),
        stop_(std::make_shared<sherd::StopAgreement>(sources.signals, out ? wall_ : nullptr, sources.start)) {
    trainer_.listen_to(stop_);
    if (!out_) return;
    out_->first = trainer_.step();
    out_->flops_per_token = trainer_.flops_per_token();
    out_->begin(config, trainer_.step());
    read_losses_before();
    if (config.verify_step > 0 && config.verify_step <= trainer_.step())
      warn(fmt::format("--verify-step {}: this run begins with step {}, so that nothing is verified",
                       config.verify_step, trainer_.step() + 1));
  }
  ~Loop() { trainer_.listen_to(nullptr); }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  TrainingEnd run(sherd::TraceOutput& trace, std::string& doing) {
    std::string ended;  // why training ended before its last step, for the worse
    while (trainer_.step() < config_.last_step() && ended.empty() && unsound_.empty() && !stop_->stops()) {
      const auto begin = Clock::now();
      trace.before_step(trainer_.step() + 1);
      doing = fmt::format("training step {}", trainer_.step() + 1);
      ended = next_step();
      if (ended.empty() && unsound_.empty()) {
        ended = trainer_.too_many_skipped();
        // All ranks leave together, and what is being saved is not lost: nothing is thrown.
        if (!ended.empty() || stop_->stops()) saving_.ends_with(trainer_.step());
        save();
      }
      wall_->step_took(seconds_since(begin) - waited_.value_or(0) / 1e3);
    }
    if (out_) out_->seconds = progress_.seconds() - out_->evaluation_seconds - out_->saving_seconds;
    // Requests that arrived after the last step's agreement, during its evaluation or save.
    if (!stop_->stops()) stop_->hear(largest(stop_->want()));
    // Guards other than that against skipped steps let a restart resume from an earlier checkpoint.
    const bool for_good = ended == trainer_.too_many_skipped() && unsound_.empty() &&
                          saving_.last_failure().empty() &&
                          (!ended.empty() || trainer_.step() >= config_.last_step());
    return {.wrong = problems(std::move(ended)),
            .stopped = stop_->reason(wall_->limit()),
            .saved = saving_.last_is_saved(),
            .unsaved = !saving_.last_failure().empty(),
            .for_good = for_good};
  }

 private:
  // Of a resumed run: for the picture and the detector of spikes.
  void read_losses_before() {
    std::vector<double> losses;
    std::vector<std::pair<int64_t, double>> held_out;
    sherd::read_losses(config_.metrics, out_->first, losses, held_out);
    int64_t step = 0;
    for (const double loss : losses) {
      out_->losses.add(++step, loss);
      spikes_.add(loss);
    }
    for (const auto& [at, loss] : held_out) {
      out_->held_out.add(at, loss);
      out_->last_held_out = loss;
    }
  }

  // Trains a step. @returns why nothing may follow it, not even a save; empty: all is well.
  std::string next_step() {
    const int64_t step = trainer_.step() + 1;
    const bool verifies = step == config_.verify_step;
    if (verifies && before_) tell(trainer_.collect(*std::exchange(before_, {})), false);
    std::optional<Trainer::Verified> verified;
    std::optional<PendingStep> now;
    if (verifies) {
      verified = trainer_.verify_step();
      verified->result.save_ms = std::exchange(waited_, {});
    } else {
      now = trainer_.issue_step();
      now->result.save_ms = std::exchange(waited_, {});
      if (before_) tell(trainer_.collect(*std::exchange(before_, {})), false);
    }
    const bool evaluate =
        config_.eval_every > 0 && (step % config_.eval_every == 0 || step == config_.last_step());
    const bool check = config_.check_replicas > 0 && step % config_.check_replicas == 0;
    if (verified) {
      tell(verified->result, evaluate);
    } else if (step == config_.last_step() || evaluate || check || saving_.stops_after(step) ||
               stop_->stops() || trainer_.next_skip_is_the_last()) {
      tell(trainer_.collect(std::move(*now)), evaluate);
    } else {
      before_ = std::move(now);
    }
    std::string wrong = verified ? judge(step, verified->repeated) : "";
    if (wrong.empty() && check) compare_replicas(step);
    return wrong;
  }

  // A checkpoint takes its parts from all replicas, so that wrong bits of one are every replica's after a
  // resume, and no later comparison finds them: none is saved that was not compared.
  sherd::SavingOptions guarded(sherd::SavingOptions options) {
    if (config_.keep_best) options.best_of = trainer_.evaluation_data();
    options.retry = [this](const std::string& failure, bool useless) {
      if (!retry_) begin_retry();
      return retry_->again(failure, useless);
    };
    if (config_.check_replicas > 0)
      options.may_save = [this](int64_t step) {
        compare_replicas(step);
        return unsound_.empty();
      };
    return options;
  }

  void begin_retry() {
    // An agreed stop was known to all ranks before; a signal that comes during the attempts ends them.
    retry_.emplace(
        trainer_.world(),
        sherd::SaveRetryOptions{.seconds = sherd::parse_duration(config_.save_retry).value_or(0),
                                .left = [this, asked = stop_->stops()] { return left_to_save(asked); },
                                .say = [](const std::string& line) { warn(line); }});
  }

  // Until --grace or --max-wall ends, without what a save takes. `asked`: a signal had asked for this save.
  double left_to_save(bool asked) const {
    const double reserve = std::max(0.5, 1.5 * saving_.longest_save().value_or(0));
    double left = std::numeric_limits<double>::infinity();
    if (signals_ != nullptr && signals_->signal() != 0) {
      if (config_.grace > 0)
        left = config_.grace - signals_->seconds_since_signal() - reserve;
      else if (!asked)
        left = 0;
    }
    if (wall_->limit() > 0) left = std::min(left, wall_->limit() - seconds_since(began_) - reserve);
    return left;
  }

  // Returns the largest value of all ranks. Collective.
  int64_t largest(int64_t value) {
    sherd::Communicator& world = *trainer_.world();
    sherd::Stream& s = world.device().compute();
    const sherd::Tensor word = sherd::Tensor::empty(world.device(), {1}, sherd::DType::i64, "stop");
    sherd::ops::copy_from_host(s, word, &value, sizeof value);
    world.all_reduce(s, word, sherd::ReduceOp::max);
    sherd::ops::copy_to_host(s, &value, word);
    return value;
  }

  void tell(sherd::StepResult result, bool evaluate) {
    loss_ = result.loss;
    if (evaluate) {
      const auto begin = Clock::now();
      const Trainer::Evaluation evaluation = trainer_.evaluate();
      result.eval_loss = evaluation.loss;
      result.eval_sets = evaluation.sets;
      result.eval_loss_ema = evaluation.loss_ema;
      saving_.evaluated(result.step, evaluation.loss);
      result.eval_ms = seconds_since(begin) * 1e3;
    }
    if (out_) {
      out_->evaluation_seconds += result.eval_ms.value_or(0) / 1e3;
      if (const auto spike = spikes_.add(result.loss)) {
        result.loss_spike = true;
        const SequenceRange data = trainer_.collected_sequences();
        warn(sherd::describe(*spike, result.step, result.grad_norm, data.first, data.count));
      }
      if (result.step == out_->first + 1) out_->first_loss = result.loss;
      out_->last_loss = result.loss;
      out_->losses.add(result.step, result.loss);
      if (result.eval_loss) {
        out_->held_out.add(result.step, *result.eval_loss);
        out_->last_held_out = result.eval_loss;
        out_->held_out_sets = result.eval_sets;
        out_->held_out_ema = result.eval_loss_ema;
      }
      // Before the step is saved: a run that is killed in between must not miss the line for good.
      out_->write_step(result, config_);
      progress_.step(result);
      if (const auto line = slow_rank_.step(result)) progress_.note(*line);
    }
    saving_.told(result.step);
  }

  // Every rank names what differs in its own state, since no other rank has seen it.
  std::string judge(int64_t step, const sherd::RepeatedStep& repeated) {
    const std::string copy = fmt::format("the copy took {:.1f} MiB of host memory",
                                         static_cast<double>(repeated.bytes) / (1 << 20));
    if (!repeated.difference.empty())
      sherd::print_error("train_gpt",
                         fmt::format("--verify-step: step {}, done twice, differs on rank {}: {}", step,
                                     trainer_.world()->rank(), repeated.difference));
    if (repeated.same && out_)
      progress_.note(
          fmt::format("step {} done twice from the same state: loss, gradient norm, weights and optimizer "
                      "state are the same bits on every rank; {}",
                      step, copy));
    return repeated.same
               ? ""
               : fmt::format(
                     "step {}, done twice from the same state, gave other bits the second time (named "
                     "above, by rank); nothing was saved after it. Look for faulty memory or an "
                     "unstable machine, or for a kernel that does not repeat itself",
                     step);
  }

  void compare_replicas(int64_t step) {
    if (std::exchange(compared_, step) == step) return;
    const sherd::ReplicaCheck check = trainer_.check_replicas();
    if (check.differences.empty()) return;
    unsound_ = fmt::format(
        "after step {} copies that several ranks hold differ: {}. All copies of a tensor must have the same "
        "bits; "
        "the step was not saved. Take the machine of such a rank out of the job, and resume from an earlier "
        "checkpoint",
        step, check.describe());
  }

  void save() {
    waited_ = saving_.after_step(trainer_.step());
    if (out_) out_->saving_seconds += waited_.value_or(0) / 1e3;
    for (const std::string& line : saving_.take_lines()) progress_.note(line);
    for (const std::string& line : saving_.take_warnings())
      if (out_) warn(line);
    if (saving_.longest_save()) wall_->save_took(*saving_.longest_save());
  }

  std::string problems(std::string ended) {
    std::vector<std::string> wrong;
    if (!ended.empty()) wrong.push_back(std::move(ended));
    if (!unsound_.empty()) wrong.push_back(unsound_);
    if (!std::isfinite(loss_))
      wrong.push_back(
          fmt::format("the loss of step {} is {}", trainer_.step(), std::isnan(loss_) ? "NaN" : "infinite"));
    if (!trainer_.weights_are_finite())
      wrong.push_back("weights are non-finite: resume from an earlier checkpoint with a lower --lr");
    if (!saving_.last_failure().empty())
      wrong.push_back("its last checkpoint is missing: " + saving_.last_failure());
    if (out_)
      for (std::string& failure : out_->finish()) wrong.push_back(std::move(failure));
    return wrong.empty() ? "" : fmt::format("training ended, but {}", fmt::join(wrong, "; "));
  }

  Trainer& trainer_;
  const TrainConfig& config_;
  Output* out_;
  sherd::StepProgress progress_;
  const sherd::StopRequest* signals_;
  Clock::time_point began_;
  std::optional<sherd::SaveRetry> retry_;
  sherd::Saving saving_;
  sherd::LossSpikeDetector spikes_;
  sherd::SlowRank slow_rank_;
  std::shared_ptr<sherd::WallLimit> wall_;
  std::shared_ptr<sherd::StopAgreement> stop_;
  double loss_ = 0;                    // of the latest step that was reported
  int64_t compared_ = 0;               // the latest step after which replicas were
  std::string unsound_;                // why nothing may be saved: how they differ
  std::optional<double> waited_;       // for the latest checkpoint, in ms
  std::optional<PendingStep> before_;  // under way: the device is never without work while the host tells
};

}  // namespace

TrainingEnd train(Trainer& trainer, const TrainConfig& config, const StopSources& sources,
                  sherd::TraceOutput& trace, Output* out, std::string& doing) {
  TrainingEnd end;
  {
    Loop loop(trainer, config, sources, out);
    // Reported before the savers are destroyed, so that the other ranks receive the cause.
    end = sherd::abort_on_error(*trainer.world(), [&] { return loop.run(trace, doing); });
  }
  if (end.stopped.empty() && sources.signals != nullptr) sources.signals->release();
  return end;
}

}  // namespace train_gpt
