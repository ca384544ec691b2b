// Generated text as it is printed.
#pragma once

#include <string>
#include <string_view>

namespace train_gpt {

/// Generated text under a heading, indented; bytes that a terminal would not print as one character each are
/// shown as \xNN, line breaks are kept.
std::string format_sample(std::string_view text);

/// Returns format_sample()'s heading, resp. its form of a byte. Text that is printed as it is made is the
/// heading, its bytes, and a line break.
std::string sample_heading();
std::string shown_byte(char byte);

/// Returns whole characters of UTF-8 for printing: unchanged except for control characters, which drive a
/// terminal: those of ASCII are shown as shown_byte() does, those of U+0080 to U+009F as both of their bytes.
std::string shown_text(std::string_view utf8);

}  // namespace train_gpt
