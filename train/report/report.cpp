#include <sherd/train/report/report.h>

#include <cmath>

#include <fmt/format.h>

namespace sherd {

std::string format_count(double count) {
  if (count < 1e3) return fmt::format("{:.0f}", count);
  if (count < 1e6) return fmt::format("{:.1f}k", count / 1e3);
  return fmt::format("{:.2f}M", count / 1e6);
}

std::string format_duration(double seconds) {
  const int64_t s = std::isfinite(seconds) ? std::llround(seconds) : 0;
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

std::string format_sets(const SetLosses& sets) {
  std::string text;
  for (const auto& [name, loss] : sets)
    text += fmt::format("{}{} {:.4f}", text.empty() ? ": " : ", ", name, loss);
  return text;
}

std::string format_summary(const Summary& summary) {
  std::string text;
  if (summary.steps > 0) {
    text += fmt::format("trained {} steps in {}, {} tokens/s", summary.steps,
                        format_duration(summary.seconds), format_count(summary.tokens_per_s));
    if (summary.evaluation_seconds > 0)
      text += fmt::format("; evaluations took {}", format_duration(summary.evaluation_seconds));
    if (summary.saving_seconds > 0)
      text += fmt::format("; waits for checkpoints {}", format_duration(summary.saving_seconds));
    text += '\n';
    text +=
        fmt::format("loss {:.4f} -> {:.4f} {}\n", summary.first_loss, summary.last_loss, summary.loss_unit);
    if (summary.eval_loss)
      text += fmt::format("held-out loss {:.4f} {}{}\n", *summary.eval_loss, summary.loss_unit,
                          format_sets(summary.eval_sets));
    if (summary.eval_loss_ema)
      text += fmt::format("held-out loss of the averages of weights {:.4f}\n", *summary.eval_loss_ema);
    text += '\n';
  }
  text += memory_table(summary.ranks, summary.replicated);
  if (summary.process) text += format_growth(*summary.process);
  return text;
}

}  // namespace sherd
