#include <sherd/train/saving/saving.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>

#include <sherd/base/printable.h>
#include <sherd/checkpoint/files/checkpoint_folder.h>

namespace sherd {

Saving::Saving(SavedRun run, SavingOptions options)
    : run_(std::move(run)), options_(std::move(options)), last_(options_.last_step) {
  const SaveFolder& folder = options_.folder;
  if (folder.save.empty()) return;
  try {
    saver_.emplace(run_.world, checkpoint_tensors(run_.model, run_.optimizer),
                   SaverOptions{.folder = folder.save,
                                .keep = options_.keep,
                                .best_of = options_.best_of,
                                .async = options_.async,
                                .continues = run_.resumed ? run_.resumed->path : "",
                                .refuse_not_finite = true,
                                // A run never replaces the checkpoints that it resumes from.
                                .overwrite = folder.overwrite && !goes_on_in_save_folder(folder),
                                .admit = [folder] { check_save_folder(folder); },
                                .files = options_.files});
  } catch (const IoError& e) {
    throw NotWritten(e.what());
  }
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
  } catch (const IoError& e) {
    if (options_.on_failure == SaveFailure::stop && !ending_) throw NotWritten(e.what());
    if (!std::exchange(heard_, false)) warn(step, e.what());
    return false;
  }
}

// Checks whether a background write has failed; all ranks handle that at the next save.
void Saving::listen() {
  try {
    saver_->poll();
  } catch (const IoError& e) {
    if (options_.on_failure == SaveFailure::stop && !ending_) throw NotWritten(e.what());
    if (!std::exchange(heard_, true)) warn(behind_, e.what());
  }
}

// The weights are lost with the process where this fails for good.
void Saving::save_last(int64_t step) {
  for (;;) {
    bool useless = false;
    try {
      saver_->save(state_after(step));
      saver_->wait();
      last_is_saved_ = true;
      return;
    } catch (const IoError& e) {
      last_failure_ = e.what();
      useless = dynamic_cast<const NotFiniteModel*>(&e) != nullptr;
    }
    if (!options_.retry || !options_.retry(last_failure_, useless)) break;
    last_failure_.clear();
  }
  if (options_.on_failure == SaveFailure::stop) throw NotWritten(last_failure_);
  warn(step, last_failure_);
}

TrainingState Saving::state_after(int64_t step) const {
  TrainingState state = run_.state();
  if (options_.best_of.empty() || evaluation_.step != step) return state;
  state.info[TrainingState::kEvalLoss] = fmt::format("{:.17g}", evaluation_.loss);
  state.info[TrainingState::kEvalData] = options_.best_of;
  return state;
}

bool Saving::falls_due(int64_t step) const {
  return step == last_ || (options_.every > 0 && step % options_.every == 0);
}

bool Saving::stops_after(int64_t step) const {
  if (!saver_) return false;
  if (options_.may_save && (due_ || falls_due(step))) return true;
  if (saver_->reads_in_place() && due_) return true;
  return falls_due(step) && (!options_.async || step == last_ || saver_->reads_in_place());
}

void Saving::told(int64_t step) {
  told_ = step;
  if (snapshot_of_ == 0 || snapshot_of_ > told_) return;
  snapshot_of_ = 0;
  saver_->write();
}

std::optional<double> Saving::after_step(int64_t step) {
  if (!saver_) return std::nullopt;
  const bool last = ending_ = step == last_;
  listen();
  due_ = due_ || falls_due(step);
  const bool may_be_best = !options_.best_of.empty() && evaluation_.step == step;
  if (!due_ && !may_be_best) return std::nullopt;
  const auto start = std::chrono::steady_clock::now();
  bool idle = true;  // also when what was in flight has failed
  attempt(behind_, [&] {
    if (last || may_be_best) {
      saver_->wait();
    } else {
      idle = saver_->idle();
    }
  });
  if (!idle) return std::nullopt;
  if (!due_) attempt(step, [&] { due_ = saver_->is_best(evaluation_.loss); });
  if (!due_) return std::nullopt;
  due_ = false;
  if (options_.may_save && !options_.may_save(step)) return std::nullopt;
  if (options_.async && !last) {
    runtime_of(run_.model).hold_weights(saver_->snapshot(state_after(step)));
    snapshot_of_ = behind_ = step;
    told(told_);
  } else if (last) {
    save_last(step);
  } else {
    attempt(step, [&] {
      saver_->save(state_after(step));
      saver_->wait();
    });
  }
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

void Saving::save_now() {
  if (!saver_) return;
  const TrainingState state = run_.state();
  if (run_.resumed != nullptr && is_there_already(*run_.resumed, state)) {
    lines_.push_back(fmt::format("not saved again: {} holds all of it",
                                 printable(run_.resumed->path.string(), std::string::npos)));
    return;
  }
  saver_->save(state);
  saver_->wait();
}

// The very checkpoint that the run was resumed from, on the same ranks.
bool Saving::is_there_already(const Resumed& resumed, const TrainingState& state) const {
  std::error_code missing;  // equivalent() of a folder that is not there yet
  const auto target = std::filesystem::path(options_.folder.save) / checkpoint_name(state.step);
  const auto info = [](const TrainingState& s, const char* key) {
    const auto found = s.info.find(key);
    return found == s.info.end() ? std::string() : found->second;
  };
  const TrainingState& saved = resumed.report.training;
  return std::filesystem::equivalent(resumed.path, target, missing) &&
         options_.folder.parts == ResumeParts::all && resumed.report.started_anew.empty() &&
         resumed.report.left_out.empty() && info(saved, "mesh") == info(state, "mesh") &&
         info(saved, "strategy") == info(state, "strategy");
}

std::vector<std::string> Saving::take_lines() {
  std::vector<std::string> lines = std::exchange(lines_, {});
  if (!saver_) return lines;
  for (const SaveReport& r : saver_->take_reports()) {
    lines.push_back(fmt::format("saved {}: {:.1f} MiB in {:.2f} s, training waited {:.0f} ms",
                                printable(r.committed.string(), std::string::npos),
                                static_cast<double>(r.bytes) / (1 << 20), r.seconds, r.blocked * 1e3));
    longest_save_ = std::max(longest_save_.value_or(0), r.seconds);
    if (!r.warning.empty()) warnings_.push_back(fmt::format("step {}: {}", r.step, r.warning));
    if (!r.removed.empty()) lines.back() += fmt::format("; removed {}", fmt::join(r.removed, ", "));
  }
  return lines;
}

}  // namespace sherd
