#include <sherd/train/guards/slow_rank.h>

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace sherd {

std::optional<ArrivalFigures> arrival_figures(const ArrivalTotals& step) {
  std::vector<double> late;
  ArrivalFigures figures;
  for (size_t r = 0; r < step.size(); ++r) {
    if (step[r].collectives == 0) continue;
    late.push_back(static_cast<double>(step[r].late_ns) / 1e6);
    if (late.size() > 1 && late.back() <= figures.worst) continue;
    figures.worst = late.back();
    figures.rank = static_cast<int>(r);
  }
  if (late.empty()) return std::nullopt;
  std::sort(late.begin(), late.end());
  figures.median = late[(late.size() - 1) / 2];
  return figures;
}

ArrivalTotals since(const ArrivalTotals& before, ArrivalTotals now) {
  for (size_t r = 0; r < std::min(now.size(), before.size()); ++r) {
    now[r].collectives -= before[r].collectives;
    now[r].last -= before[r].last;
    now[r].late_ns -= before[r].late_ns;
    now[r].after_median_ns -= before[r].after_median_ns;
  }
  return now;
}

std::optional<std::string> SlowRank::step(const StepResult& result) {
  window_.resize(std::max(window_.size(), result.arrivals.size()));
  for (size_t r = 0; r < result.arrivals.size(); ++r) {
    window_[r].collectives += result.arrivals[r].collectives;
    window_[r].last += result.arrivals[r].last;
    window_[r].after_median_ns += result.arrivals[r].after_median_ns;
  }
  ms_ += result.step_ms;
  if (++steps_ < options_.window) return std::nullopt;
  const ArrivalTotals window = std::exchange(window_, {});
  const auto steps = static_cast<double>(std::exchange(steps_, 0));
  const double step_ms = std::exchange(ms_, 0) / steps;
  if (result.step < silent_until_) return std::nullopt;
  const auto slow =
      std::max_element(window.begin(), window.end(),
                       [](const RankArrivals& a, const RankArrivals& b) { return a.last < b.last; });
  if (slow == window.end() || slow->collectives == 0) return std::nullopt;
  const double last = static_cast<double>(slow->last) / static_cast<double>(slow->collectives);
  const double ms = static_cast<double>(slow->after_median_ns) / 1e6 / steps;
  if (last <= options_.last || ms <= options_.time * step_ms) return std::nullopt;
  silent_until_ = result.step + options_.silence;
  return fmt::format(
      "rank {} arrives last in {:.0f} % of the collectives, {:.{}f} ms per step after the median (steps {} "
      "to {})",
      slow - window.begin(), 100 * last, ms, ms < 10 ? 1 : 0, result.step - options_.window + 1, result.step);
}

}  // namespace sherd
