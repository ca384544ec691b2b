#include "text.h"

#include <iterator>

#include <fmt/format.h>

namespace sherd::tools {

std::string printable(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = [&](size_t k) { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0u; };
    const bool two_bytes = byte(i) == 0xc2 && byte(i + 1) >= 0x80 && byte(i + 1) < 0xa0;  // U+0080 to U+009F
    if (two_bytes) ++i;
    if (two_bytes || byte(i) < 0x20 || byte(i) == 0x7f) {
      out += fmt::format("\\u{:04x}", byte(i));
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (bytes >= 10240 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string count_text(int64_t count, const std::string& what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace sherd::tools
