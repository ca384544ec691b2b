#include <sherd/train/report/timeline.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <sherd/base/enum_table.h>

namespace sherd {
namespace {

constexpr std::string_view kComputing = "compute";
constexpr std::string_view kFirstStreams[] = {kComputing, "gather", "reduce"};

/// Sorts the streams of a rank: those first, then by name.
std::string place_of(const std::string& stream) {
  const auto found = std::find(std::begin(kFirstStreams), std::end(kFirstStreams), stream);
  return static_cast<char>('0' + (found - std::begin(kFirstStreams))) + stream;
}

bool is_collective(WorkKind kind) {
  return kind == WorkKind::gather || kind == WorkKind::reduce || kind == WorkKind::exchange;
}

using Spans = std::vector<std::pair<double, double>>;

/// Sorted and without overlaps.
Spans merged(Spans spans) {
  std::sort(spans.begin(), spans.end());
  Spans out;
  for (const auto& s : spans) {
    if (!out.empty() && s.first <= out.back().second) {
      out.back().second = std::max(out.back().second, s.second);
    } else {
      out.push_back(s);
    }
  }
  return out;
}

double length(const Spans& spans) {
  double sum = 0;
  for (const auto& [begin, end] : spans) sum += end - begin;
  return sum;
}

double common(const Spans& a, const Spans& b) {
  double sum = 0;
  for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    sum += std::max(0.0, std::min(a[i].second, b[k].second) - std::max(a[i].first, b[k].first));
    a[i].second < b[k].second ? ++i : ++k;
  }
  return sum;
}

}  // namespace

const char* name_of(WorkKind kind) { return kWorkKinds.name(kind); }

std::vector<Lane> lanes_of(const Timeline& timeline) {
  std::vector<std::string> ranks;
  std::map<std::pair<size_t, std::string>, Lane> lanes;
  for (const TraceRecord& r : timeline.records) {
    const auto found = std::find(ranks.begin(), ranks.end(), r.device);
    const auto rank = static_cast<size_t>(found - ranks.begin());
    if (found == ranks.end()) ranks.push_back(r.device);
    Lane& lane = lanes[{rank, place_of(r.stream)}];
    lane.rank = r.device;
    lane.stream = r.stream;
    lane.records.push_back(r);
  }
  std::vector<Lane> out;
  for (auto& [key, lane] : lanes) {
    std::stable_sort(lane.records.begin(), lane.records.end(),
                     [](const TraceRecord& a, const TraceRecord& b) { return a.begin < b.begin; });
    out.push_back(std::move(lane));
  }
  return out;
}

Overlap overlap_of(const Timeline& timeline) {
  std::map<std::string, std::pair<Spans, Spans>> ranks;  // collectives, work of the compute stream
  for (const TraceRecord& r : timeline.records) {
    auto& [collectives, compute] = ranks[r.device];
    if (r.stream == kComputing) {
      compute.emplace_back(r.begin, r.end);
    } else if (is_collective(r.kind)) {
      collectives.emplace_back(r.begin, r.end);
    }
  }
  Overlap sum;
  for (auto& [rank, spans] : ranks) {
    const Spans collectives = merged(std::move(spans.first));
    sum.collectives += length(collectives) * 1e-3;
    sum.hidden += common(collectives, merged(std::move(spans.second))) * 1e-3;
  }
  return sum;
}

std::vector<StepPart> parts_of(const Timeline& timeline) {
  if (timeline.marks.empty()) return {};
  enum Part { products, attention, others, optimizer, copies, collectives, library, waiting };
  std::vector<StepPart> parts = {{"products"}, {"attention"},   {"other kernels"}, {"optimizer"},
                                 {"copies"},   {"collectives"}, {"libtorch"},      {"waiting"}};
  const auto part_of = [](WorkKind kind) {
    switch (kind) {
      case WorkKind::product:
        return products;
      case WorkKind::attention:
      case WorkKind::attention_backward:
        return attention;
      case WorkKind::optimizer:
      case WorkKind::squares:
      case WorkKind::orthogonalize:
      case WorkKind::update:
        return optimizer;
      case WorkKind::copy:
        return copies;
      default:
        return is_collective(kind) ? collectives : others;
    }
  };
  const double begin = timeline.marks.front().at;
  double end = begin;
  std::set<std::string> ranks;
  std::map<std::string, std::pair<Spans, Spans>>
      spans;  // between calls of sherd; the compute streams' operations
  for (const TraceRecord& r : timeline.records) {
    if (r.begin < begin || (r.stream != kComputing && r.stream != kLibtorchStream)) continue;
    auto& [library_spans, compute] = spans[r.device];
    (r.stream == kComputing ? compute : library_spans).emplace_back(r.begin, r.end);
    if (r.stream != kComputing) continue;
    ranks.insert(r.device);
    end = std::max(end, r.end);
    parts[part_of(r.kind)].ms += (r.end - r.begin) * 1e-3;
  }
  for (auto& [rank, both] : spans) {
    const Spans between = merged(std::move(both.first));
    parts[library].ms += (length(between) - common(between, merged(std::move(both.second)))) * 1e-3;
  }
  const auto lanes = static_cast<double>(std::max<size_t>(1, ranks.size()));
  const auto steps = static_cast<double>(timeline.marks.size());
  const double step = (end - begin) * 1e-3 / steps;
  parts[waiting].ms = step * steps * lanes;
  for (size_t i = 0; i < waiting; ++i) parts[waiting].ms -= parts[i].ms;
  for (StepPart& p : parts) {
    p.ms /= steps * lanes;
    p.share = step > 0 ? p.ms / step : 0;
  }
  if (parts[library].ms == 0) parts.erase(parts.begin() + library);
  return parts;
}

std::vector<std::string> format_parts(const std::vector<StepPart>& parts) {
  double step = 0;
  for (const StepPart& p : parts) step += p.ms;
  std::vector<std::string> lines{fmt::format("a step of {:.1f} ms, by the compute streams' time:", step)};
  for (const StepPart& p : parts)
    lines.push_back(fmt::format("  {:<14}{:>10.1f} ms{:>7.1f} %", p.name, p.ms, 100 * p.share));
  return lines;
}

std::string chrome_trace(const Timeline& timeline) {
  using Json = nlohmann::ordered_json;
  double start = std::numeric_limits<double>::infinity();
  for (const auto& r : timeline.records) start = std::min(start, r.begin);
  for (const auto& m : timeline.marks) start = std::min(start, m.at);
  const auto after = [&](double at) { return std::round((at - start) * 1e3) / 1e3; };

  Json events = Json::array();
  const auto metadata = [&](const char* name, size_t pid, size_t tid, const Json& arguments) {
    events.push_back({{"name", name}, {"ph", "M"}, {"pid", pid}, {"tid", tid}, {"args", arguments}});
  };
  size_t pid = 0, tid = 0;
  const std::string* rank = nullptr;
  const std::vector<Lane> lanes = lanes_of(timeline);
  for (const Lane& lane : lanes) {
    if (!rank || *rank != lane.rank) {
      pid += rank ? 1 : 0;
      tid = 0;
      rank = &lane.rank;
      metadata("process_name", pid, 0, {{"name", lane.rank}});
      metadata("process_sort_index", pid, 0, {{"sort_index", pid}});
    }
    metadata("thread_name", pid, tid, {{"name", lane.stream}});
    metadata("thread_sort_index", pid, tid, {{"sort_index", tid}});
    for (const TraceRecord& r : lane.records)
      events.push_back({{"name", r.what},
                        {"cat", name_of(r.kind)},
                        {"ph", "X"},
                        {"ts", after(r.begin)},
                        {"dur", after(r.end) - after(r.begin)},
                        {"pid", pid},
                        {"tid", tid}});
    ++tid;
  }
  for (const auto& m : timeline.marks)
    events.push_back(
        {{"name", m.name}, {"ph", "i"}, {"s", "g"}, {"ts", after(m.at)}, {"pid", 0}, {"tid", 0}});
  const Json all = {{"traceEvents", events},
                    {"displayTimeUnit", "ms"},
                    {"otherData", {{"title", timeline.title}, {"left_out", timeline.left_out}}}};
  return all.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace sherd
