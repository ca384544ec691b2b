#include "report.h"

#include <cmath>

#include <fmt/format.h>

namespace train_gpt {
namespace {

std::string mebibytes(int64_t bytes) { return fmt::format("{:.2f}", static_cast<double>(bytes) / (1 << 20)); }

std::string ratio(int64_t part, int64_t whole) {
  if (whole == 0) return "-";
  return fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string table_line(std::string_view title, std::string_view parameters, std::string_view gradients,
                       std::string_view optimizer, std::string_view sum, std::string_view other = "") {
  return fmt::format("  {:<17}{:>12}{:>12}{:>12}{:>12}{:>{}}\n", title, parameters, gradients, optimizer, sum,
                     other, other.empty() ? 0 : 12);
}

int64_t sum_of(const RankMemory& m) { return m.parameters + m.gradients + m.optimizer; }

std::string memory_table(const std::vector<RankMemory>& ranks, const RankMemory& replicated) {
  std::string text = "memory per rank, peak, in MiB\n";
  text += table_line("", "parameters", "gradients", "optimizer", "sum", "other");
  RankMemory largest;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankMemory& m = ranks[r];
    text += table_line(fmt::format("rank {}", r), mebibytes(m.parameters), mebibytes(m.gradients),
                       mebibytes(m.optimizer), mebibytes(sum_of(m)), mebibytes(m.other_peak));
    if (sum_of(m) >= sum_of(largest)) largest = m;
  }
  text += table_line("if replicated", mebibytes(replicated.parameters), mebibytes(replicated.gradients),
                     mebibytes(replicated.optimizer), mebibytes(sum_of(replicated)));
  text +=
      table_line("largest rank", ratio(largest.parameters, replicated.parameters),
                 ratio(largest.gradients, replicated.gradients),
                 ratio(largest.optimizer, replicated.optimizer), ratio(sum_of(largest), sum_of(replicated)));
  if (largest.parameters > replicated.parameters || largest.gradients > replicated.gradients)
    text +=
        "  above 100 %: a rank has its own share of the weights and reduced gradients beside those that are "
        "whole\n"
        "  (gathered parameters, gradients to be reduced), which zero1 keeps of all units, zero3 of a few\n";
  return text;
}

}  // namespace

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

std::string format_summary(const Summary& summary) {
  std::string text;
  if (summary.steps > 0) {
    text += fmt::format("trained {} steps in {}, {} tokens/s\n", summary.steps,
                        format_duration(summary.seconds), format_count(summary.tokens_per_s));
    text += fmt::format("loss {:.4f} -> {:.4f} nats per byte\n", summary.first_loss, summary.last_loss);
    if (summary.eval_loss) text += fmt::format("held-out loss {:.4f} nats per byte\n", *summary.eval_loss);
    text += '\n';
  }
  text += memory_table(summary.ranks, summary.replicated);
  if (summary.process) text += format_growth(*summary.process);
  return text;
}

std::string format_sample(std::string_view text) {
  std::string shown = "generated text\n  | ";
  for (const char c : text) {
    if (c == '\n') {
      shown += "\n  | ";
    } else if ((c >= ' ' && c <= '~') || c == '\t') {
      shown += c;
    } else {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return shown + '\n';
}

}  // namespace train_gpt
