#include "layout_summary.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "text.h"

namespace sherd::tools {
namespace {

constexpr size_t kBuffersShown = 24;

/// One value per rank, built up from ranges of ranks that get equally much.
class PerRank {
 public:
  explicit PerRank(int world) : steps_(static_cast<size_t>(world) + 1) {}
  void add(int first, int end, int64_t amount) {
    steps_[first] += amount;
    steps_[end] -= amount;
  }
  Spread spread() const {
    std::vector<int64_t> values(steps_.size());
    std::partial_sum(steps_.begin(), steps_.end(), values.begin());
    values.pop_back();
    const auto [min, max] = std::minmax_element(values.begin(), values.end());
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    return {static_cast<double>(*min), sum / static_cast<double>(values.size()), static_cast<double>(*max)};
  }

 private:
  std::vector<int64_t> steps_;
};

std::string percent(int64_t part, int64_t of) {
  return of > 0 ? fmt::format("{:.2f} %", 100.0 * static_cast<double>(part) / static_cast<double>(of)) : "-";
}

struct BufferTotals {
  int64_t elements = 0, padding = 0, cut_rows = 0;
};

std::string buffers_text(const Arrangement& a) {
  size_t width = 6;
  for (size_t i = 0; i < std::min(a.buffers.size(), kBuffersShown); ++i)
    width = std::max(width, printable(a.buffers[i].name).size());
  const auto line = [&](const std::string& name, const std::string& buckets, const std::string& slice,
                        const BufferTotals& t) {
    return fmt::format("  {:<{}} {:>7} {:>15} {:>18} {:>12} {:>9}\n", printable(name), width, buckets, slice,
                       t.elements, percent(t.padding, t.elements - t.padding), t.cut_rows);
  };
  std::string text = fmt::format("  {:<{}} {:>7} {:>15} {:>18} {:>12} {:>9}\n", "buffer", width, "buckets",
                                 "largest slice", "elements", "padding", "cut rows");
  BufferTotals all;
  size_t buckets = 0;
  for (size_t i = 0; i < a.buffers.size(); ++i) {
    const Buffer& b = a.buffers[i];
    BufferTotals t{b.elements, b.padding, 0};
    int64_t slice = 0;
    for (const Bucket& k : b.buckets) {
      t.cut_rows += static_cast<int64_t>(k.layout.cut_rows().size());
      slice = std::max(slice, k.layout.slice());
    }
    if (i < kBuffersShown) text += line(b.name, std::to_string(b.buckets.size()), std::to_string(slice), t);
    all = {all.elements + t.elements, all.padding + t.padding, all.cut_rows + t.cut_rows};
    buckets += b.buckets.size();
  }
  if (a.buffers.size() > kBuffersShown)
    text += fmt::format("  ... and {} more\n", a.buffers.size() - kBuffersShown);
  return text + line("sum", std::to_string(buckets), "", all);
}

std::string plan_text(const Arrangement& a) {
  if (a.matrices.empty()) return a.work->name() + " plan: no matrices\n";
  std::map<PlanMode, int64_t> modes;
  int64_t bytes = 0;
  for (const PlanEntry& e : a.plan.entries) {
    ++modes[e.mode];
    bytes += e.bytes;
  }
  std::string text = fmt::format("{} plan: {} matrices", a.work->name(), a.matrices.size());
  for (auto& [mode, count] : modes) text += fmt::format(", {} {}", count, name_of(mode));
  const std::string state =
      a.options.soap ? fmt::format("state bytes {:.3f} (the same), ", state_imbalance(a)) : "";
  return text + fmt::format(
                    "; {} travel per step\n  imbalance {:.3f} (busiest rank over the least possible), "
                    "{}redundancy {:.3f}\n",
                    bytes_text(static_cast<double>(bytes)), a.plan.imbalance, state, a.plan.redundancy);
}

}  // namespace

double state_imbalance(const Arrangement& a) {
  double sum = 0, largest = 0, most = 0;
  for (auto& m : a.matrices) largest = std::max(largest, static_cast<double>(a.work->state_bytes(m)));
  for (const PlanRank& r : a.plan.ranks) {
    sum += static_cast<double>(r.state_bytes);
    most = std::max(most, static_cast<double>(r.state_bytes));
  }
  return sum > 0 ? most / std::max(sum / a.options.world, largest) : 1;
}

RankTotals rank_totals(const Arrangement& a) {
  PerRank elements(a.options.world), state(a.options.world), owned(a.options.world);
  for (size_t i = 0; i < a.model.size(); ++i) {
    const ParamPlace& at = a.places[i];
    const int64_t bytes = a.model[i].optimizer != Algorithm::muon ? 8 : a.options.soap ? 0 : 4;
    for_holders(a.bucket_of(at).layout, at.param, [&](int first, int end, int64_t n) {
      elements.add(first, end, n);
      state.add(first, end, n * bytes);
    });
  }
  const auto& ranks = a.plan.ranks;
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    state.add(r, r + 1, ranks[r].state_bytes);
    owned.add(r, r + 1, ranks[r].state_bytes);
  }
  RankTotals totals{elements.spread(), state.spread(), owned.spread(), {}};
  const auto [min, max] =
      std::minmax_element(ranks.begin(), ranks.end(), [](auto& x, auto& y) { return x.cost < y.cost; });
  totals.cost = {min->cost, 0, max->cost};
  for (const PlanRank& r : ranks) totals.cost.mean += r.cost / static_cast<double>(ranks.size());
  return totals;
}

std::string summary(const Arrangement& a) {
  int64_t elements[2] = {0, 0}, params[2] = {0, 0};
  for (const ParamEntry& p : a.model) {
    elements[p.optimizer == Algorithm::muon] += numel_of(p.shape);
    ++params[p.optimizer == Algorithm::muon];
  }
  std::string text = fmt::format("{} over {} ranks: AdamW {} elements in {} parameters, {} {} in {}\n\n",
                                 to_string(a.options.layout), a.options.world, elements[0], params[0],
                                 a.work->name(), elements[1], params[1]);
  text += buffers_text(a);
  const RankTotals t = rank_totals(a);
  text +=
      fmt::format("\n  {:<24} {:>13} {:>13} {:>13} {:>10}\n", "per rank", "min", "mean", "max", "max/mean");
  const auto line = [&](const char* what, const Spread& s, auto show) {
    text += fmt::format("  {:<24} {:>13} {:>13} {:>13} {:>10.3f}\n", what, show(s.min), show(s.mean),
                        show(s.max), s.evenness());
  };
  const auto number = [](double v) { return fmt::format("{:.6g}", v); };
  line("elements", t.elements, number);
  line("optimizer state", t.state_bytes, [](double v) { return bytes_text(v); });
  if (a.options.soap) line("of it, SOAP's", t.owned_bytes, [](double v) { return bytes_text(v); });
  line(a.options.soap ? "SOAP's FLOPs" : "Newton-Schulz cost", t.cost, number);
  text += "\n" + plan_text(a);
  return text + fmt::format("fingerprint {:016x}\n", a.fingerprint());
}

}  // namespace sherd::tools
