#include <sherd/optim/whole/plan_text.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

namespace sherd {
namespace {

constexpr size_t kRowsShown = 64;

std::string mebibytes(double bytes) { return fmt::format("{:.2f}", bytes / (1 << 20)); }

std::string rank_line(std::string_view rank, double matrices, double in, double out, double flops,
                      double cost) {
  return fmt::format("{:>6}{:>10.4g}{:>12}{:>12}{:>12.3f}{:>12.4g}\n", rank, matrices, mebibytes(in),
                     mebibytes(out), flops * 1e-9, cost);
}

// Returns the state bytes of the rank with the most, and of a rank on average.
std::pair<double, double> state_of(const MatrixPlan& plan) {
  double most = 0, sum = 0;
  for (auto& r : plan.ranks) {
    most = std::max(most, static_cast<double>(r.state_bytes));
    sum += static_cast<double>(r.state_bytes);
  }
  return {most, sum / static_cast<double>(std::max<size_t>(1, plan.ranks.size()))};
}

// Returns "0,1", "0-7 (8)" for consecutive ranks, or "0..30 (5)" where ranks between do not own.
std::string owners_of(const PlanEntry& e) {
  if (e.owners.size() <= 4) return fmt::format("{}", fmt::join(e.owners, ","));
  const bool together = e.owners.back() - e.owners.front() + 1 == static_cast<int>(e.owners.size());
  return fmt::format("{}{}{} ({})", e.owners.front(), together ? "-" : "..", e.owners.back(),
                     e.owners.size());
}

}  // namespace

std::string explain(const MatrixPlan& plan, const MatrixWork& work, std::span<const LogicalMatrix> matrices) {
  std::map<PlanMode, int> modes;
  int64_t bytes = 0;
  for (auto& e : plan.entries) {
    ++modes[e.mode];
    bytes += e.bytes;
  }
  std::string text =
      fmt::format("{} plan: {} matrices over {} ranks", work.name(), matrices.size(), plan.team());
  if (plan.replicas > 1)
    text += plan.copies > 1 ? fmt::format(" ({} replicas share the work)", plan.replicas)
                            : fmt::format(" ({} replicas, each for itself)", plan.replicas);
  text += fmt::format("; {}\n", work.description());
  for (auto& [mode, count] : modes) text += fmt::format("  {:<7}{:>8} matrices\n", name_of(mode), count);
  text += fmt::format(
      "  imbalance {:.3f} (busiest rank over the least possible), redundancy {:.3f}, {} MiB moved per step, "
      "fingerprint {:016x}\n",
      plan.imbalance, plan.redundancy, mebibytes(static_cast<double>(bytes)), plan.fingerprint);

  if (const auto [most, mean] = state_of(plan); most > 0)
    text += fmt::format("  state of the matrices at most {} MiB on a rank, mean {} MiB\n", mebibytes(most),
                        mebibytes(mean));
  text += fmt::format("{:>6}{:>10}{:>12}{:>12}{:>12}{:>12}\n", "rank", "matrices", "MiB in", "MiB out",
                      "GFLOP", "cost");
  PlanRank sum, most;
  for (size_t t = 0; t < plan.ranks.size(); ++t) {
    const PlanRank& r = plan.ranks[t];
    if (t < kRowsShown)
      text += rank_line(std::to_string(t), static_cast<double>(r.matrices), static_cast<double>(r.bytes_in),
                        static_cast<double>(r.bytes_out), r.flops, r.cost);
    sum.matrices += r.matrices;
    sum.bytes_in += r.bytes_in;
    sum.bytes_out += r.bytes_out;
    sum.flops += r.flops;
    sum.cost += r.cost;
    most.matrices = std::max(most.matrices, r.matrices);
    most.bytes_in = std::max(most.bytes_in, r.bytes_in);
    most.bytes_out = std::max(most.bytes_out, r.bytes_out);
    most.flops = std::max(most.flops, r.flops);
    most.cost = std::max(most.cost, r.cost);
  }
  if (plan.ranks.size() > kRowsShown) text += fmt::format("{:>6}\n", "...");
  const double n = static_cast<double>(plan.ranks.size());
  text += rank_line("mean", static_cast<double>(sum.matrices) / n, static_cast<double>(sum.bytes_in) / n,
                    static_cast<double>(sum.bytes_out) / n, sum.flops / n, sum.cost / n);
  text += rank_line("max", static_cast<double>(most.matrices), static_cast<double>(most.bytes_in),
                    static_cast<double>(most.bytes_out), most.flops, most.cost);

  size_t width = 6;
  for (size_t i = 0; i < std::min(matrices.size(), kRowsShown); ++i)
    width = std::max(width, matrices[i].label().size());
  text += fmt::format("{:<{}}{:>16}  {:<7}{:>14}{:>12}\n", "matrix", width, "rows x cols", "mode", "owners",
                      "MiB moved");
  for (size_t i = 0; i < std::min(matrices.size(), kRowsShown); ++i) {
    const LogicalMatrix& m = matrices[i];
    const PlanEntry& e = plan.entries[i];
    const std::string note = e.mode == PlanMode::gram ? "" : work.note(m);
    text += fmt::format("{:<{}}{:>16}  {:<7}{:>14}{:>12}{}\n", m.label(), width,
                        fmt::format("{} x {}", m.whole_rows(), m.whole_cols()), name_of(e.mode), owners_of(e),
                        mebibytes(static_cast<double>(e.bytes)), note.empty() ? note : "  " + note);
  }
  if (matrices.size() > kRowsShown) text += fmt::format("... and {} more\n", matrices.size() - kRowsShown);
  return text;
}

}  // namespace sherd
