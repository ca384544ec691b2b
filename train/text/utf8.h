// Bytes that should be UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace sherd {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

/// Appends to `text` what of `bytes` is decided, and returns what may yet become a character: at most three
/// bytes at the end. Each longest beginning of a character that goes on wrongly, or else each single wrong
/// byte, becomes U+FFFD (Unicode, chapter 3, "substitution of maximal subparts").
std::string_view take_characters(std::string_view bytes, std::string& text);

}  // namespace sherd
