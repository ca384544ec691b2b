#include <sherd/train/settings/duration.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>

#include <fmt/format.h>

namespace sherd {
namespace {

constexpr int64_t kLargest = 1'000'000'000;  // of one number: products stay far from any overflow

// Takes the digits at the front of `text`.
std::optional<int64_t> take_number(std::string_view& text) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return std::nullopt;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number > kLargest) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

std::optional<double> parse_clock(std::string_view text) {
  const auto hours = take_number(text);
  if (!hours) return std::nullopt;
  int64_t seconds = *hours;
  for (int part = 0; part < 2; ++part) {
    if (text.size() < 3 || text[0] != ':') return std::nullopt;
    std::string_view digits = text.substr(1, 2);
    const auto number = take_number(digits);
    if (!number || !digits.empty() || *number >= 60) return std::nullopt;
    seconds = seconds * 60 + *number;
    text.remove_prefix(3);
  }
  if (!text.empty()) return std::nullopt;
  return static_cast<double>(seconds);
}

}  // namespace

std::optional<double> parse_duration(std::string_view text) {
  if (text.find(':') != text.npos) return parse_clock(text);
  constexpr std::array<std::pair<char, int64_t>, 4> kUnits = {
      {{'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1}}};
  if (text.empty()) return std::nullopt;
  int64_t seconds = 0;
  size_t unit = 0;
  while (!text.empty()) {
    const auto number = take_number(text);
    if (!number || text.empty()) return std::nullopt;
    while (unit < kUnits.size() && kUnits[unit].first != text[0]) ++unit;
    if (unit == kUnits.size()) return std::nullopt;
    seconds += *number * kUnits[unit++].second;
    text.remove_prefix(1);
  }
  return static_cast<double>(seconds);
}

std::string show_duration(double seconds) {
  if (seconds < 59.95) return fmt::format("{:.1f}s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  const std::string hours = whole >= 3600 ? fmt::format("{}h", whole / 3600) : "";
  return fmt::format("{}{}m{}s", hours, whole / 60 % 60, whole % 60);
}

}  // namespace sherd
