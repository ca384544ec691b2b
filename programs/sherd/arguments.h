// Checks of flags' values: CLI11's own messages do not say which values are legal.
#pragma once

#include <cstdint>
#include <string>

namespace sherd::tools {

/// "" when the text is a whole number from `low` to `high`; otherwise what is wrong.
std::string in_range(const std::string& text, int64_t low, int64_t high);

/// Bytes, as "1000000", "5GB" (powers of 1000) or "512MiB" (powers of 1024). @throws InvalidArgument for
/// other text, 0, and more than fits.
int64_t parse_bytes(const std::string& text);

}  // namespace sherd::tools
