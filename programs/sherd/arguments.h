// Checks of flag values with messages that list the legal values.
#pragma once

#include <cstdint>
#include <string>

namespace sherd::tools {

/// Returns "" when the text is a whole number from `low` to `high`; otherwise the error.
std::string in_range(const std::string& text, int64_t low, int64_t high);
/// Check of an option by in_range().
inline auto whole_number(int64_t low, int64_t high) {
  return [=](const std::string& text) { return in_range(text, low, high); };
}

/// Parses bytes: "1000000", "5GB" (powers of 1000) or "512MiB" (powers of 1024). @throws InvalidArgument for
/// other text, 0, and values that do not fit.
int64_t parse_bytes(const std::string& text);

}  // namespace sherd::tools
