#include "saving.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <filesystem>
#include <system_error>

#include <sherd/checkpoint/files/checkpoint_folder.h>

#include "outputs.h"

namespace train_gpt {

Saving::Saving(Trainer& trainer, const TrainConfig& config, sherd::FileSystem* files)
    : trainer_(trainer), config_(config), last_(config.last_step()) {
  if (config.save.empty()) return;
  saver_.emplace(trainer.world(), trainer.checkpoint_tensors(),
                 sherd::SaverOptions{.folder = config.save,
                                     .keep = config.keep,
                                     .async = config.async_save,
                                     .continues = trainer.resumed() ? trainer.resumed()->path : "",
                                     // A run never replaces what it goes on from.
                                     .overwrite = config.overwrite && !goes_on_in_save_folder(config),
                                     .admit = [&config] { check_save_folder(config); },
                                     .files = files});
}

void Saving::warn(int64_t step, const std::string& what) {
  const bool last = step == last_;
  warnings_.push_back(fmt::format(
      "step {}: no checkpoint was saved: {}; {}", step, what,
      last ? "it was the last one" : "what is there stays, and the next one that is due is tried"));
}

template <class Work>
bool Saving::attempt(int64_t step, Work work) {
  try {
    work();
    return true;
  } catch (const sherd::IoError& e) {
    if (config_.save_failure == "stop") throw;
    if (!std::exchange(heard_, false)) warn(step, e.what());
    if (step == last_) last_failure_ = e.what();
    return false;
  }
}

// Whether what is written behind has failed meanwhile, which all ranks take note of when they save again.
void Saving::listen() {
  try {
    saver_->poll();
  } catch (const sherd::IoError& e) {
    if (config_.save_failure == "stop") throw;
    if (!std::exchange(heard_, true)) warn(behind_, e.what());
  }
}

bool Saving::falls_due(int64_t step) const {
  return step == last_ || (config_.save_every > 0 && step % config_.save_every == 0);
}

bool Saving::stops_after(int64_t step) const {
  return saver_ && falls_due(step) && (!config_.async_save || step == last_);
}

void Saving::told(int64_t step) {
  told_ = step;
  if (snapshot_of_ == 0 || snapshot_of_ > told_) return;
  snapshot_of_ = 0;
  saver_->write();
}

std::optional<double> Saving::after_step(int64_t step) {
  if (!saver_) return std::nullopt;
  listen();
  const bool last = step == last_;
  due_ = due_ || falls_due(step);
  if (!due_) return std::nullopt;
  const auto start = std::chrono::steady_clock::now();
  bool idle = true;  // also when what was in flight has failed
  attempt(behind_, [&] {
    if (last) {
      saver_->wait();
    } else {
      idle = saver_->idle();
    }
  });
  if (!idle) return std::nullopt;
  due_ = false;
  if (config_.async_save && !last) {
    trainer_.hold_weights(saver_->snapshot(trainer_.training_state()));
    snapshot_of_ = behind_ = step;
    told(told_);
  } else {
    attempt(step, [&] {
      saver_->save(trainer_.training_state());
      saver_->wait();
    });
  }
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

void Saving::save_now() {
  if (!saver_) return;
  const sherd::TrainingState state = trainer_.training_state();
  if (trainer_.resumed() && is_there_already(*trainer_.resumed(), state)) {
    lines_.push_back(fmt::format("not saved again: {} holds all of it", trainer_.resumed()->path.string()));
    return;
  }
  saver_->save(state);
  saver_->wait();
}

// The very checkpoint that the run was resumed from, on the same ranks.
bool Saving::is_there_already(const sherd::Resumed& resumed, const sherd::TrainingState& state) const {
  std::error_code missing;  // equivalent() of a folder that is not there yet
  const auto target = std::filesystem::path(config_.save) / sherd::checkpoint_name(trainer_.step());
  const auto info = [](const sherd::TrainingState& s, const char* key) {
    const auto found = s.info.find(key);
    return found == s.info.end() ? std::string() : found->second;
  };
  const sherd::TrainingState& saved = resumed.report.training;
  return std::filesystem::equivalent(resumed.path, target, missing) && config_.resume_parts == "all" &&
         resumed.report.started_anew.empty() && resumed.report.left_out.empty() &&
         info(saved, "mesh") == info(state, "mesh") && info(saved, "strategy") == info(state, "strategy");
}

std::vector<std::string> Saving::take_lines() {
  std::vector<std::string> lines = std::exchange(lines_, {});
  if (!saver_) return lines;
  for (const sherd::SaveReport& r : saver_->take_reports()) {
    lines.push_back(fmt::format("saved {}: {:.1f} MiB in {:.2f} s, training waited {:.0f} ms",
                                r.committed.string(), static_cast<double>(r.bytes) / (1 << 20), r.seconds,
                                r.blocked * 1e3));
    if (r.not_finite > 0)
      lines.back() += fmt::format("; {} values of its model are not finite", r.not_finite);
    if (!r.warning.empty()) warnings_.push_back(fmt::format("step {}: {}", r.step, r.warning));
    if (!r.removed.empty()) lines.back() += fmt::format("; removed {}", fmt::join(r.removed, ", "));
  }
  return lines;
}

}  // namespace train_gpt
