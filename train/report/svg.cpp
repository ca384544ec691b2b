#include <sherd/train/report/detail/svg.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace sherd::svg {
namespace {

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 32 ? '?' : c;
    }
  }
  return out;
}

}  // namespace

std::string page(double width, double height, int font_size, const std::string& body) {
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
             "height=\"{1:.0f}\" font-family=\"sans-serif\" font-size=\"{2}\" fill=\"#333333\">\n"
             "<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"white\"/>\n",
             width, height, font_size) +
         body + "</svg>\n";
}

std::string text(double x, double y, const char* anchor, const std::string& text, const char* attributes) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor,
                     attributes, escaped(text));
}

Ticks::Ticks(double span, double count) {
  const double raw = span / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  distance = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0})
    if (factor * power >= raw) distance = factor * power;
  decimals = std::max(0, static_cast<int>(-std::floor(std::log10(distance) + 1e-9)));
}

std::string Ticks::label(double value) const { return fmt::format("{:.{}f}", value, decimals); }

}  // namespace sherd::svg
