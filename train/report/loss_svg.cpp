#include <sherd/train/report/loss_svg.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include <fmt/format.h>

#include <sherd/kernels/device/error.h>

namespace sherd {
namespace {

constexpr double kPlotWidth = 800, kPlotHeight = 480;
constexpr double kPlotLeft = 70, kPlotRight = 20, kPlotTop = 40, kPlotBottom = 55;
constexpr const char* kTrainColor = "#4477aa";
constexpr const char* kHeldOutColor = "#cc6677";

using Points = std::vector<std::pair<double, double>>;  // (step, loss)

/// Averages of equal runs of steps, at most 1000 of them.
Points thinned(const std::vector<double>& losses) {
  const size_t run = (losses.size() + 999) / 1000;
  Points points;
  for (size_t begin = 0; begin < losses.size(); begin += run) {
    const size_t end = std::min(begin + run, losses.size());
    double sum = 0, count = 0;
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(losses[i])) continue;
      sum += losses[i];
      ++count;
    }
    if (count > 0) points.emplace_back(0.5 * static_cast<double>(begin + 1 + end), sum / count);
  }
  return points;
}

/// The distance of 1, 2 or 5 times a power of ten that gives about `count` ticks over `span`.
double tick_distance(double span, double count) {
  const double raw = span / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw) return factor * power;
  }
  return 10 * power;
}

/// Maps values to pixels; the loss axis begins and ends at ticks.
struct Axes {
  double last_step = 1;
  double low = 0, high = 1, distance = 0.2;

  double x(double step) const { return kPlotLeft + (kPlotWidth - kPlotLeft - kPlotRight) * step / last_step; }
  double y(double loss) const {
    return kPlotTop + (kPlotHeight - kPlotTop - kPlotBottom) * (high - loss) / (high - low);
  }
};

Axes fit(const Points& train, const Points& held_out, size_t steps) {
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
  axes.distance = tick_distance(span, 6);
  axes.low = std::floor(low / axes.distance) * axes.distance;
  axes.high = std::max(std::ceil(high / axes.distance) * axes.distance, axes.low + axes.distance);
  return axes;
}

std::string label_at(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, text);
}

std::string grid(const Axes& axes, const std::string& unit) {
  std::string svg;
  const auto ticks = std::llround((axes.high - axes.low) / axes.distance);
  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(axes.distance) + 1e-9)));
  for (int64_t i = 0; i <= ticks; ++i) {
    const double loss = axes.low + static_cast<double>(i) * axes.distance;
    svg += fmt::format("<path d=\"M{:.1f} {:.1f}H{:.1f}\" stroke=\"#dddddd\"/>\n", kPlotLeft, axes.y(loss),
                       kPlotWidth - kPlotRight);
    svg += label_at(kPlotLeft - 8, axes.y(loss) + 4, "end", fmt::format("{:.{}f}", loss, decimals));
  }
  const double distance = std::max(1.0, tick_distance(axes.last_step, 8));
  for (double step = 0; step <= axes.last_step; step += distance) {
    svg += fmt::format("<path d=\"M{:.1f} {:.1f}v5\" stroke=\"#333333\"/>\n", axes.x(step),
                       kPlotHeight - kPlotBottom);
    svg += label_at(axes.x(step), kPlotHeight - kPlotBottom + 20, "middle", fmt::format("{:.0f}", step));
  }
  svg += fmt::format("<path d=\"M{:.1f} {:.1f}V{:.1f}H{:.1f}\" fill=\"none\" stroke=\"#333333\"/>\n",
                     kPlotLeft, kPlotTop, kPlotHeight - kPlotBottom, kPlotWidth - kPlotRight);
  svg += label_at((kPlotLeft + kPlotWidth - kPlotRight) / 2, kPlotHeight - 12, "middle", "step");
  svg += fmt::format(
      "<text transform=\"translate(18 {:.1f}) rotate(-90)\" text-anchor=\"middle\">loss, {}"
      "</text>\n",
      (kPlotTop + kPlotHeight - kPlotBottom) / 2, unit);
  return svg;
}

std::string curve(const Axes& axes, const Points& points, const char* color, bool dots) {
  std::string svg =
      fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\" points=\"", color);
  for (const auto& [step, loss] : points) svg += fmt::format("{:.1f},{:.1f} ", axes.x(step), axes.y(loss));
  svg += "\"/>\n";
  if (!dots && points.size() > 1) return svg;
  for (const auto& [step, loss] : points) {
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", axes.x(step),
                       axes.y(loss), color);
  }
  return svg;
}

std::string legend(double x, const char* color, const std::string& title) {
  return fmt::format("<path d=\"M{:.1f} 20h24\" stroke=\"{}\" stroke-width=\"3\"/>\n", x, color) +
         label_at(x + 32, 24, "start", title);
}

}  // namespace

std::string draw_losses(const std::vector<double>& losses,
                        const std::vector<std::pair<int64_t, double>>& held_out, const std::string& unit) {
  const Points train = thinned(losses);
  Points evaluated;
  for (const auto& [step, loss] : held_out) {
    if (std::isfinite(loss)) evaluated.emplace_back(static_cast<double>(step), loss);
  }
  const Axes axes = fit(train, evaluated, losses.size());
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"sans-serif\" font-size=\"13\" fill=\"#333333\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
      kPlotWidth, kPlotHeight);
  svg += grid(axes, unit) + curve(axes, train, kTrainColor, false) +
         legend(kPlotLeft + 10, kTrainColor, "training");
  if (!evaluated.empty()) {
    svg += curve(axes, evaluated, kHeldOutColor, true) + legend(kPlotLeft + 130, kHeldOutColor, "held out");
  }
  return svg + "</svg>\n";
}

void write_loss_svg(const std::string& path, const std::vector<double>& losses,
                    const std::vector<std::pair<int64_t, double>>& held_out, const std::string& unit) {
  std::ofstream file(path, std::ios::binary);
  file << draw_losses(losses, held_out, unit);
  file.close();
  if (!file)
    throw IoError(fmt::format("cannot write the loss curve '{}'; check the path and the disk", path));
}

}  // namespace sherd
