#include "train_gpt/run/output.h"

#include <cstdio>

#include <fmt/ranges.h>

#include <sherd/base/error.h>
#include <sherd/base/program.h>
#include <sherd/train/saving/saving.h>

#include "train_gpt/rules/parse_config.h"
#include "train_gpt/settings/launch_flags.h"

namespace train_gpt {

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

Output::Output(const CommandLine& line, const sherd::ProcessMemory& at_start)
    : quiet(line.config.quiet), inherited(line.inherited), notes(line.notes), start(at_start) {}

void Output::open(const TrainConfig& config) {
  // A run without training appends to the output of another.
  const bool go_on = !config.resume.empty() || !config.trains();
  if (!config.metrics.empty()) metrics.emplace(config.metrics, config_text(config), go_on);
}

void Output::begin(const TrainConfig& config, int64_t step) {
  if (!config.log_dir.empty()) events.emplace(config.log_dir, step);
}

void Output::write_step(sherd::StepResult& result, const TrainConfig& config) {
  result.flops_per_s = flops_per_token * result.tokens_per_s;
  if (dense_peak) result.mfu = *result.flops_per_s / *dense_peak;
  if (product_rate) result.product_share = *result.flops_per_s / *product_rate;
  if (plan) result.planned_peak_bytes = plan->peak_bytes();
  comm = result.comm;
  peak_bytes = result.peak_bytes;
  if (metrics) metrics->write(result);
  if (events) events->write(result);
  const std::vector<std::string> wrong = failures();
  const std::string what = fmt::format("{}", fmt::join(wrong, "; "));
  if (!wrong.empty() && config.save_failure == sherd::SaveFailure::stop) throw sherd::NotWritten(what);
  if (!wrong.empty() && !write_failed_)
    warn(fmt::format("step {}: {}; training continues, and tries again", result.step, what));
  write_failed_ = !wrong.empty();
}

void Output::write_evaluation(int64_t step, double loss, const sherd::SetLosses& sets) {
  if (metrics) metrics->write_evaluation(step, loss, sets);
  if (events) events->write_evaluation(step, loss, sets);
}

std::vector<std::string> Output::finish() {
  if (metrics) metrics->flush();
  if (events) events->flush();
  return failures();
}

std::vector<std::string> Output::failures() const {
  std::vector<std::string> wrong;
  if (metrics) wrong.push_back(metrics->failure());
  if (events) wrong.push_back(events->failure());
  std::erase(wrong, "");
  return wrong;
}

}  // namespace train_gpt
