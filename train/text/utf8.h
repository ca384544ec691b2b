// Bytes that should be UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace sherd {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

/// Appends to `text` the characters of `bytes` that are complete, and returns the beginning of one that is
/// not: at most three bytes at the end. Each longest beginning of a character that continues wrongly, or else
/// each single wrong byte, becomes U+FFFD (Unicode, chapter 3, "substitution of maximal subparts").
std::string_view take_characters(std::string_view bytes, std::string& text);

}  // namespace sherd
