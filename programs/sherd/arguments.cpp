#include "arguments.h"

#include <charconv>
#include <string_view>

#include <fmt/format.h>

#include <sherd/base/error.h>

namespace sherd::tools {
namespace {

struct Unit {
  std::string_view name;
  int64_t bytes;
};
constexpr Unit kSuffixes[] = {{"", 1},
                              {"B", 1},
                              {"KB", 1000},
                              {"MB", 1000'000},
                              {"GB", 1000'000'000},
                              {"TB", 1000'000'000'000},
                              {"KiB", int64_t{1} << 10},
                              {"MiB", int64_t{1} << 20},
                              {"GiB", int64_t{1} << 30},
                              {"TiB", int64_t{1} << 40}};

}  // namespace

std::string in_range(const std::string& text, int64_t low, int64_t high) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (whole && value >= low && value <= high && !(value == 0 && text.starts_with('-'))) return "";
  return fmt::format("'{}' must be a whole number from {} to {}", text, low, high);
}

int64_t parse_bytes(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  for (const Unit& u : kSuffixes) {
    int64_t bytes = 0;
    if (error == std::errc() && u.name == unit && value > 0 &&
        !__builtin_mul_overflow(value, u.bytes, &bytes))
      return bytes;
  }
  throw InvalidArgument(
      fmt::format("'{}' must be a number of bytes, at least 1, such as 1000000, 500MB, 5GB or 512MiB", text));
}

}  // namespace sherd::tools
