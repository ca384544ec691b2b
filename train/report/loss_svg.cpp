#include <sherd/train/report/loss_svg.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/train/report/detail/svg.h>

namespace sherd {
namespace {

constexpr double kPlotWidth = 800, kPlotHeight = 480;
constexpr double kPlotLeft = 70, kPlotRight = 20, kPlotTop = 40, kPlotBottom = 55;
constexpr const char* kTrainColor = "#4477aa";
constexpr const char* kHeldOutColor = "#cc6677";

using Points = std::vector<std::pair<double, double>>;  // (step, loss)

/// Maps values to pixels; the loss axis begins and ends at ticks.
struct Axes {
  double last_step = 1;
  double low = 0, high = 1;
  svg::Ticks ticks{1, 6};

  double x(double step) const { return kPlotLeft + (kPlotWidth - kPlotLeft - kPlotRight) * step / last_step; }
  double y(double loss) const {
    return kPlotTop + (kPlotHeight - kPlotTop - kPlotBottom) * (high - loss) / (high - low);
  }
};

Axes fit(const Points& train, const Points& held_out, int64_t steps) {
  Axes axes;
  axes.last_step = std::max(1.0, static_cast<double>(steps));
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const Points* points : {&train, &held_out}) {
    for (const auto& [step, loss] : *points) {
      axes.last_step = std::max(axes.last_step, step);
      low = std::min(low, loss);
      high = std::max(high, loss);
    }
  }
  if (low > high) return axes;  // nothing to show
  const double span = std::max(high - low, 1e-3 * std::max(std::abs(high), 1e-3));
  axes.ticks = svg::Ticks(span, 6);
  const double distance = axes.ticks.distance;
  axes.low = std::floor(low / distance) * distance;
  axes.high = std::max(std::ceil(high / distance) * distance, axes.low + distance);
  return axes;
}

std::string grid(const Axes& axes, const std::string& unit) {
  std::string out;
  const auto last = std::llround((axes.high - axes.low) / axes.ticks.distance);
  for (int64_t i = 0; i <= last; ++i) {
    const double loss = axes.low + static_cast<double>(i) * axes.ticks.distance;
    out += fmt::format("<path d=\"M{:.1f} {:.1f}H{:.1f}\" stroke=\"#dddddd\"/>\n", kPlotLeft, axes.y(loss),
                       kPlotWidth - kPlotRight);
    out += svg::text(kPlotLeft - 8, axes.y(loss) + 4, "end", axes.ticks.label(loss));
  }
  const double distance = std::max(1.0, svg::Ticks(axes.last_step, 8).distance);
  for (double step = 0; step <= axes.last_step; step += distance) {
    out += fmt::format("<path d=\"M{:.1f} {:.1f}v5\" stroke=\"#333333\"/>\n", axes.x(step),
                       kPlotHeight - kPlotBottom);
    out += svg::text(axes.x(step), kPlotHeight - kPlotBottom + 20, "middle", fmt::format("{:.0f}", step));
  }
  out += fmt::format("<path d=\"M{:.1f} {:.1f}V{:.1f}H{:.1f}\" fill=\"none\" stroke=\"#333333\"/>\n",
                     kPlotLeft, kPlotTop, kPlotHeight - kPlotBottom, kPlotWidth - kPlotRight);
  out += svg::text((kPlotLeft + kPlotWidth - kPlotRight) / 2, kPlotHeight - 12, "middle", "step");
  out += fmt::format(
      "<text transform=\"translate(18 {:.1f}) rotate(-90)\" text-anchor=\"middle\">loss, {}"
      "</text>\n",
      (kPlotTop + kPlotHeight - kPlotBottom) / 2, unit);
  return out;
}

std::string curve(const Axes& axes, const Points& points, const char* color, bool dots) {
  std::string out =
      fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\" points=\"", color);
  for (const auto& [step, loss] : points) out += fmt::format("{:.1f},{:.1f} ", axes.x(step), axes.y(loss));
  out += "\"/>\n";
  if (!dots && points.size() > 1) return out;
  for (const auto& [step, loss] : points) {
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", axes.x(step),
                       axes.y(loss), color);
  }
  return out;
}

std::string legend(double x, const char* color, const std::string& title) {
  return fmt::format("<path d=\"M{:.1f} 20h24\" stroke=\"{}\" stroke-width=\"3\"/>\n", x, color) +
         svg::text(x + 32, 24, "start", title);
}

}  // namespace

void LossCurve::add(int64_t step, double loss) {
  last_step_ = step;
  if (!std::isfinite(loss)) return;
  const int64_t index = (step - 1) / length_;
  if (runs_.empty() || runs_.back().index != index) runs_.push_back({.index = index});
  Run& run = runs_.back();
  ++run.count;
  run.steps += static_cast<double>(step);
  run.losses += loss;
  while (runs_.size() > kMost) {
    length_ *= 2;
    std::vector<Run> merged;
    for (const Run& r : runs_) {
      if (merged.empty() || merged.back().index != r.index / 2) merged.push_back({.index = r.index / 2});
      merged.back().count += r.count;
      merged.back().steps += r.steps;
      merged.back().losses += r.losses;
    }
    runs_ = std::move(merged);
  }
}

std::vector<std::pair<double, double>> LossCurve::points() const {
  Points points;
  for (const Run& r : runs_)
    points.emplace_back(r.steps / static_cast<double>(r.count), r.losses / static_cast<double>(r.count));
  return points;
}

std::string draw_losses(const LossCurve& losses, const LossCurve& held_out, const std::string& unit) {
  const Points train = losses.points(), evaluated = held_out.points();
  const Axes axes = fit(train, evaluated, losses.last_step());
  std::string body = grid(axes, unit) + curve(axes, train, kTrainColor, false) +
                     legend(kPlotLeft + 10, kTrainColor, "training");
  if (!evaluated.empty())
    body += curve(axes, evaluated, kHeldOutColor, true) + legend(kPlotLeft + 130, kHeldOutColor, "held out");
  return svg::page(kPlotWidth, kPlotHeight, 13, body);
}

void write_loss_svg(const std::string& path, const LossCurve& losses, const LossCurve& held_out,
                    const std::string& unit) {
  std::ofstream file(path, std::ios::binary);
  file << draw_losses(losses, held_out, unit);
  file.close();
  if (!file)
    throw IoError(fmt::format("cannot write the loss curve '{}'; check the path and the disk", path));
}

}  // namespace sherd
