#include "progress.h"

#include <algorithm>
#include <iostream>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace train_gpt {

Progress Progress::on_stdout(bool quiet, int64_t steps, int64_t first) {
  if (quiet) return Progress(std::cout, Mode::off, steps, 0, first);
  if (::isatty(STDOUT_FILENO) == 0) return Progress(std::cout, Mode::lines, steps, 0, first);
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return Progress(std::cout, Mode::bar, steps, known ? size.ws_col : 80, first);
}

Progress::Progress(std::ostream& out, Mode mode, int64_t steps, int columns, int64_t first)
    : out_(out), mode_(mode), steps_(steps), columns_(columns), first_(first) {}

Progress::~Progress() {
  if (drawn_) out_ << '\n' << std::flush;
}

double Progress::seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

void Progress::step(const StepResult& result) {
  if (mode_ == Mode::bar) {
    if (result.eval_loss) eval_loss_ = result.eval_loss;
    if (!is_redraw_due(result)) return;
    out_ << '\r' << draw_bar(result) << "\x1b[K" << std::flush;
    drawn_ = Clock::now();
  } else if (mode_ == Mode::lines && is_line_due(result)) {
    out_ << describe(result) << '\n' << std::flush;
  }
}

void Progress::note(const std::string& line) {
  if (mode_ == Mode::off) return;
  if (drawn_) out_ << "\r\x1b[K";
  drawn_.reset();
  out_ << line << '\n' << std::flush;
}

bool Progress::is_redraw_due(const StepResult& result) const {
  const bool long_ago = !drawn_ || Clock::now() - *drawn_ >= std::chrono::milliseconds(100);
  return long_ago || result.eval_loss || result.step == steps_;
}

bool Progress::is_line_due(const StepResult& result) const {
  constexpr int64_t kLines = 20;
  const auto part = [&](int64_t step) { return step * kLines / steps_; };
  return result.step == first_ + 1 || result.eval_loss || part(result.step) != part(result.step - 1);
}

std::string Progress::describe(const StepResult& result) const {
  const double elapsed = seconds();
  const double left =
      elapsed / static_cast<double>(result.step - first_) * static_cast<double>(steps_ - result.step);
  const std::optional<double>& eval_loss = mode_ == Mode::bar ? eval_loss_ : result.eval_loss;
  const auto width = fmt::formatted_size("{}", steps_);
  return fmt::format(
      "step {:>{}}/{}  loss {:.4f}  {}{} tokens/s  {}", result.step, width, steps_, result.loss,
      eval_loss ? fmt::format("held-out {:.4f}  ", *eval_loss) : "", format_count(result.tokens_per_s),
      result.step == steps_ ? "took " + format_duration(elapsed) : "left " + format_duration(left));
}

std::string Progress::draw_bar(const StepResult& result) const {
  std::string text = describe(result);
  const auto room =
      static_cast<int64_t>(columns_) - static_cast<int64_t>(text.size()) - 4;  // " [", "]", cursor
  if (room < 8) return text.substr(0, static_cast<size_t>(std::max(columns_ - 1, 0)));
  const int64_t cells = std::min<int64_t>(room, 40);
  const int64_t full = cells * result.step / steps_;
  return fmt::format("{} [{:=<{}}{:{}}]", text, "", full, "", cells - full);
}

}  // namespace train_gpt
