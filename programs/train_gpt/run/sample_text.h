// Generated text as it is printed.
#pragma once

#include <string>
#include <string_view>

namespace train_gpt {

/// Text is printed as it is made: the heading, its bytes or characters, indented, and a line break.
std::string sample_heading();

/// Returns bytes for printing: those that a terminal would not print as one character each are shown as \xNN, line breaks
/// are kept.
std::string shown_bytes(std::string_view bytes);

/// Returns whole characters of UTF-8 for printing: unchanged except for control characters, which drive a
/// terminal: those of ASCII are shown as shown_bytes() does, those of U+0080 to U+009F as both of their bytes.
std::string shown_text(std::string_view utf8);

}  // namespace train_gpt
