#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <sherd/base/enum_table.h>
#include <sherd/train/report/detail/svg.h>
#include <sherd/train/report/timeline.h>

namespace sherd {
namespace {

constexpr double kWidth = 1600, kLeft = 150, kRight = 70, kTop = 104, kBottom = 56;
constexpr double kLane = 22, kBar = 16, kGroupGap = 12;
constexpr double kLetter = 6.2;  // width of one in a label

// In the order of WorkKind.
constexpr EnumTable<WorkKind, 14> kColors{"#7799cc", "#4477aa", "#66ccee", "#66ccee", "#ccbb44",
                                          "#ee6677", "#aa3377", "#228833", "#115522", "#888888",
                                          "#888888", "#228833", "#7799cc", "#228833"};
// Kinds of the legend; the others are empty, or have the colour of one of these.
constexpr WorkKind kLegend[] = {WorkKind::product, WorkKind::attention, WorkKind::compute,
                                WorkKind::gather,  WorkKind::reduce,    WorkKind::exchange,
                                WorkKind::copy,    WorkKind::optimizer, WorkKind::orthogonalize};

/// Time axis, in milliseconds from `start`.
struct Axis {
  double start = 0, span = 1;  // microseconds, milliseconds

  double ms(double at) const { return (at - start) * 1e-3; }
  double x_of_ms(double ms) const { return kLeft + (kWidth - kLeft - kRight) * ms / span; }
  double x(double at) const { return x_of_ms(ms(at)); }
};

Axis fit(const Timeline& t) {
  double low = 0, high = 0;
  bool any = false;
  const auto take = [&](double begin, double end) {
    low = any ? std::min(low, begin) : begin;
    high = any ? std::max(high, end) : end;
    any = true;
  };
  for (const auto& r : t.records) take(r.begin, r.end);
  for (const auto& m : t.marks) take(m.at, m.at);
  return {low, std::max(1e-3, (high - low) * 1e-3)};
}

/// One bar of the drawing: an operation, or several of one kind too narrow to be drawn apart.
struct Bar {
  double begin, end;  // pixels
  WorkKind kind;
  const std::string* what;  // of one operation, else null

  double width() const { return end - begin; }
};

/// Work narrower than a pixel, of one pixel: has the colour of what takes most of it.
class Pixel {
 public:
  bool holds(const Bar& bar) const { return used_ && std::floor(bar.begin) == std::floor(begin_); }
  void add(const Bar& bar) {
    if (!used_) begin_ = bar.begin;
    used_ = true;
    end_ = bar.end;
    widths_[bar.kind] += bar.width();
  }
  std::optional<Bar> take() {
    if (!std::exchange(used_, false)) return std::nullopt;
    const auto most = std::max_element(widths_.begin(), widths_.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    const Bar bar{begin_, end_, most->first, nullptr};
    widths_.clear();
    return bar;
  }

 private:
  bool used_ = false;
  double begin_ = 0, end_ = 0;
  std::map<WorkKind, double> widths_;
};

std::vector<Bar> bars_of(const Lane& lane, const Axis& axis) {
  constexpr double kNarrow = 4;
  std::vector<Bar> bars;
  const auto append = [&](const std::optional<Bar>& bar) {
    if (!bar) return;
    const bool joins = !bars.empty() && bars.back().kind == bar->kind && bar->begin - bars.back().end < 1 &&
                       (bar->width() < kNarrow || bars.back().width() < kNarrow);
    if (!joins) return bars.push_back(*bar);
    // The name of what is wide stays.
    if (bars.back().width() < kNarrow) bars.back().what = bar->width() < kNarrow ? nullptr : bar->what;
    bars.back().end = std::max(bars.back().end, bar->end);
  };
  Pixel pixel;
  for (const auto& r : lane.records) {
    const double begin = axis.x(r.begin);
    const Bar bar{begin, std::max(axis.x(r.end), begin + 0.3), r.kind, &r.what};
    if (!pixel.holds(bar) || bar.width() >= 1) append(pixel.take());
    if (bar.width() >= 1) {
      append(bar);
    } else {
      pixel.add(bar);
    }
  }
  append(pixel.take());
  return bars;
}

double busy(const Lane& lane, const Axis& axis) {
  double sum = 0;
  for (const auto& r : lane.records) sum += (r.end - r.begin) * 1e-3;
  return sum / axis.span;
}

std::string draw_lane(const Lane& lane, const Axis& axis, double y) {
  std::string out = fmt::format("<path d=\"M{:.0f} {:.0f}h{:.0f}v{:.0f}h-{:.0f}z\" fill=\"#f0f0f0\"/>\n",
                                kLeft, y, kWidth - kLeft - kRight, kBar, kWidth - kLeft - kRight);
  out += svg::text(kLeft - 8, y + 12, "end", lane.stream);
  out += svg::text(kWidth - kRight + 8, y + 12, "start", fmt::format("{:.0f} %", 100 * busy(lane, axis)));
  std::map<WorkKind, std::string> paths;
  std::string labels;
  for (const Bar& b : bars_of(lane, axis)) {
    const double drawn =
        b.width() > 3 ? b.width() - 0.7 : b.width();  // so that neighbours are seen to be two
    paths[b.kind] += fmt::format("M{:.1f} {:.0f}h{:.1f}v{:.0f}h-{:.1f}z", b.begin, y, drawn, kBar, drawn);
    if (b.what && b.width() > kLetter * static_cast<double>(b.what->size()) + 6)
      labels +=
          svg::text((b.begin + b.end) / 2, y + 12, "middle", *b.what, " font-size=\"11\" fill=\"white\"");
  }
  for (const auto& [kind, path] : paths)
    out += fmt::format("<path fill=\"{}\" d=\"{}\"/>\n", kColors.name(kind), path);
  return out + labels;
}

std::string draw_axis(const Axis& axis, double bottom) {
  std::string out;
  const svg::Ticks ticks(axis.span, 12);
  for (int64_t i = 0; static_cast<double>(i) * ticks.distance <= axis.span; ++i) {
    const double ms = static_cast<double>(i) * ticks.distance, x = axis.x_of_ms(ms);
    out += fmt::format("<path d=\"M{:.1f} {:.0f}v5\" stroke=\"#333333\"/>\n", x, bottom);
    out += svg::text(x, bottom + 19, "middle", ticks.label(ms));
  }
  out +=
      fmt::format("<path d=\"M{:.0f} {:.0f}H{:.0f}\" stroke=\"#333333\"/>\n", kLeft, bottom, kWidth - kRight);
  return out + svg::text((kLeft + kWidth - kRight) / 2, bottom + 40, "middle", "milliseconds");
}

std::string draw_marks(const Timeline& t, const Axis& axis, double bottom) {
  std::string out;
  for (const auto& m : t.marks) {
    const double x = axis.x(m.at);
    out += fmt::format(
        "<path d=\"M{:.1f} {:.0f}V{:.0f}\" stroke=\"#333333\" stroke-width=\"1.5\" stroke-dasharray=\"5 "
        "3\"/>\n",
        x, kTop - 14, bottom);
    out += svg::text(x + 5, kTop - 6, "start", m.name);
  }
  return out;
}

std::string draw_legend() {
  std::string out;
  double x = kLeft;
  for (const WorkKind kind : kLegend) {
    out += fmt::format("<rect x=\"{:.0f}\" y=\"62\" width=\"14\" height=\"14\" fill=\"{}\"/>\n", x,
                       kColors.name(kind));
    out += svg::text(x + 20, 74, "start", name_of(kind));
    x += 110;
  }
  return out + svg::text(kWidth - 8, kTop - 6, "end", "busy");
}

std::string subtitle(const Timeline& t) {
  const Overlap o = overlap_of(t);
  std::string text;
  if (o.collectives > 0)
    text = fmt::format("of the time in collectives (waits for peers included) {:.0f} % passes beside compute",
                       100 * o.hidden / o.collectives);
  if (t.left_out > 0)
    text +=
        fmt::format("{}{} operations are left out: the trace was full", text.empty() ? "" : "; ", t.left_out);
  return text;
}

}  // namespace

std::string draw_timeline(const Timeline& timeline) {
  const Axis axis = fit(timeline);
  const std::vector<Lane> lanes = lanes_of(timeline);
  std::string body;
  double y = kTop;
  const std::string* rank = nullptr;
  for (const Lane& lane : lanes) {
    if (!rank || *rank != lane.rank) {
      if (rank) y += kGroupGap;
      rank = &lane.rank;
      body += svg::text(12, y + 12, "start", lane.rank, " font-weight=\"bold\"");
    }
    body += draw_lane(lane, axis, y);
    y += kLane;
  }
  const double bottom = y + 4;
  return svg::page(kWidth, bottom + kBottom, 12,
                   svg::text(kLeft, 26, "start", timeline.title, " font-size=\"17\"") +
                       svg::text(kLeft, 47, "start", subtitle(timeline)) + draw_legend() + body +
                       draw_marks(timeline, axis, bottom) + draw_axis(axis, bottom));
}

}  // namespace sherd
