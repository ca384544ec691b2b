#include "plan_sweep.h"

#include <algorithm>
#include <charconv>
#include <functional>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/train/report/detail/svg.h>

#include "text.h"

namespace sherd::tools {
namespace {

constexpr int64_t kMostRanks = 65536;

/// Most of a rank's bytes, with what the allocator keeps.
double gibibytes(const Plan& p) {
  const RankForecast& most = p.most_loaded();
  return static_cast<double>(most.peak_bytes + most.by_class.at("slack")) / (1 << 30);
}

/// One of the two diagrams, from `top` on.
struct Diagram {
  const char* title;
  double top;
  std::function<double(const Plan&)> value;
};

constexpr double kWidth = 760, kHeight = 200, kLeft = 80;

std::string draw(const Diagram& d, const std::vector<SweepPoint>& points, double line) {
  double high = line;
  for (const SweepPoint& p : points) high = std::max(high, d.value(p.plan));
  high *= 1.1;
  const double step = (kWidth - kLeft - 40) / std::max<double>(1, static_cast<double>(points.size() - 1));
  const auto y = [&](double v) { return d.top + kHeight * (1 - v / high); };
  std::string text = svg::text(kLeft, d.top - 10, "start", d.title, " font-weight=\"bold\"");
  for (int i = 0; i <= 4; ++i) {
    const double v = high * i / 4;
    text += fmt::format("<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>\n",
                        kLeft, kWidth - 30, y(v));
    text += svg::text(kLeft - 8, y(v) + 4, "end", fmt::format("{:.4g}", v));
  }
  if (line > 0)
    text += fmt::format(
                "<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#cc6677\" "
                "stroke-dasharray=\"6 "
                "4\"/>\n",
                kLeft, kWidth - 30, y(line)) +
            svg::text(kWidth - 30, y(line) - 5, "end", "memory of a rank", " fill=\"#cc6677\"");
  std::string path;
  for (size_t i = 0; i < points.size(); ++i) {
    const double x = kLeft + step * static_cast<double>(i), at = y(d.value(points[i].plan));
    path += fmt::format("{:.1f},{:.1f} ", x, at);
    text += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"#4477aa\"/>", x, at);
    text += svg::text(x, d.top + kHeight + 18, "middle", fmt::format("{}", points[i].world));
  }
  return text +
         fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"#4477aa\" stroke-width=\"2\"/>\n", path);
}

}  // namespace

Sweep parse_sweep(const std::string& text) {
  constexpr std::string_view kName = "world=";
  Sweep s;
  const size_t dots = text.find("..");
  const auto number = [&](size_t begin, size_t end, int64_t& n) {
    const char* const last = text.data() + end;
    const auto [at, error] = std::from_chars(text.data() + begin, last, n);
    return error == std::errc() && at == last && n >= 1 && n <= kMostRanks;
  };
  if (!text.starts_with(kName) || dots == std::string::npos || !number(kName.size(), dots, s.first) ||
      !number(dots + 2, text.size(), s.last) || s.first > s.last)
    throw InvalidArgument(
        fmt::format("--sweep '{}': write world=FIRST..LAST with numbers from 1 to {}, e.g. "
                    "world=8..65536",
                    text, kMostRanks));
  return s;
}

std::vector<SweepPoint> sweep_plans(const PlanRequest& base, const Sweep& sweep) {
  std::vector<SweepPoint> points;
  const int64_t divisor = base.pipeline * base.config.context * base.config.tp * base.config.replicas *
                          base.config.expert_parallel;
  for (int64_t world = sweep.first; world <= sweep.last; world *= 2) {
    if (world % divisor != 0)
      throw InvalidArgument(fmt::format(
          "--sweep: {} ranks are not a multiple of pipeline x context x tp x replicas x expert-parallel = "
          "{}; begin with {}",
          world, divisor, divisor));
    PlanRequest r = base;
    r.config.ranks = world / r.pipeline;
    r.config.batch = base.config.batch / base.config.data_ranks() * r.config.data_ranks();
    points.push_back({world, make_plan(r, PlannedRanks::few)});
  }
  return points;
}

std::string sweep_table(const std::vector<SweepPoint>& points) {
  std::string text = fmt::format("  {:>8}{:>14}{:>12}{:>14}{:>12}{:>8}\n", "ranks", "memory", "step",
                                 "exposed", "optimizer", "MFU");
  for (const SweepPoint& p : points)
    text += fmt::format("  {:>8}{:>14}{:>9.1f} ms{:>11.1f} ms{:>9.1f} ms{:>8}{}\n", p.world,
                        bytes_text(gibibytes(p.plan) * (1 << 30)), p.plan.time.total * 1e3,
                        p.plan.time.exposed_communication * 1e3, p.plan.time.optimizer * 1e3,
                        p.plan.mfu ? fmt::format("{:.1f} %", 100 * *p.plan.mfu) : "-",
                        p.plan.fits ? "" : "  does not fit");
  return text;
}

std::string draw_sweep(const PlanRequest& r, const std::vector<SweepPoint>& points) {
  const Diagram memory{"memory per rank, GiB", 70, gibibytes};
  const Diagram time{"step, ms", 350, [](const Plan& p) { return p.time.total * 1e3; }};
  const std::string title =
      fmt::format("predicted over the number of ranks: {} on {}, {}, {}", word_of(r.config.optimizer),
                  r.hardware.name, name_of(*r.config.strategy), word_of(r.config.layout));
  return svg::page(kWidth, 600, 12,
                   svg::text(kLeft, 28, "start", title, " font-size=\"15\"") +
                       draw(memory, points, static_cast<double>(r.hardware.memory_bytes) / (1 << 30)) +
                       draw(time, points, 0));
}

}  // namespace sherd::tools
