// Words for people: sizes, counts, and names that may hold anything.
#pragma once

#include <cstdint>
#include <string>

namespace sherd::tools {

/// Control characters as \u00XX: a terminal would act upon them, and lines would break.
std::string printable(const std::string& text);
/// "731 B", "43.1 MiB"
std::string bytes_text(double bytes);
inline std::string bytes_text(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }
/// "1 file", "3 files"
std::string count_text(int64_t count, const std::string& what);

}  // namespace sherd::tools
