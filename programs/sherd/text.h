// Human-readable formatting: sizes, counts, and names with arbitrary bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sherd::tools {

/// sherd::printable() of the whole text, however long it is.
std::string printable(std::string_view text);
/// "731 B", "43.1 MiB"
std::string bytes_text(double bytes);
inline std::string bytes_text(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }
/// "1 file", "3 files"
std::string count_text(int64_t count, const std::string& what);

}  // namespace sherd::tools
