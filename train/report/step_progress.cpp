#include <sherd/train/report/step_progress.h>

#include <iostream>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include <sherd/train/report/report.h>

namespace sherd {

StepProgress StepProgress::on_stdout(bool quiet, int64_t steps, int64_t first) {
  const auto columns = [] { return ProgressLine::columns_of(STDOUT_FILENO); };
  return StepProgress(std::cout, ProgressLine::mode_of(STDOUT_FILENO, quiet), steps, columns, first);
}

StepProgress::StepProgress(std::ostream& out, Mode mode, int64_t steps, std::function<int()> columns,
                           int64_t first)
    : line_(out, mode), steps_(steps), columns_(std::move(columns)), first_(first) {}

StepProgress::~StepProgress() { line_.finish(); }

double StepProgress::seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

void StepProgress::step(const StepResult& result) {
  if (line_.mode() == Mode::bar) {
    if (result.eval_loss) eval_loss_ = result.eval_loss;
    if (!is_redraw_due(result)) return;
    line_.draw(describe(result), result.step, steps_, columns_());
    drawn_ = Clock::now();
  } else if (line_.mode() == Mode::lines && is_line_due(result)) {
    line_.line(describe(result));
  }
}

bool StepProgress::is_redraw_due(const StepResult& result) const {
  const bool long_ago = !line_.drawn() || Clock::now() - drawn_ >= std::chrono::milliseconds(100);
  return long_ago || result.eval_loss || result.step == steps_;
}

bool StepProgress::is_line_due(const StepResult& result) const {
  constexpr int64_t kLines = 20;
  const auto part = [&](int64_t step) { return step * kLines / steps_; };
  return result.step == first_ + 1 || result.eval_loss || part(result.step) != part(result.step - 1);
}

std::string StepProgress::describe(const StepResult& result) const {
  const double elapsed = seconds();
  const double left =
      elapsed / static_cast<double>(result.step - first_) * static_cast<double>(steps_ - result.step);
  const std::optional<double>& eval_loss = line_.mode() == Mode::bar ? eval_loss_ : result.eval_loss;
  const auto width = fmt::formatted_size("{}", steps_);
  // A bar has no room for sets.
  std::string sets = line_.mode() == Mode::bar ? "" : format_sets(result.eval_sets);
  if (result.eval_loss_ema) sets += fmt::format(" (average {:.4f})", *result.eval_loss_ema);
  return fmt::format(
      "step {:>{}}/{}  loss {:.4f}  {}{} tokens/s  {}", result.step, width, steps_, result.loss,
      eval_loss ? fmt::format("held-out {:.4f}{}  ", *eval_loss, sets) : "",
      format_count(result.tokens_per_s),
      result.step == steps_ ? "took " + format_duration(elapsed) : "left " + format_duration(left));
}

}  // namespace sherd
