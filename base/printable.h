// External text in messages: names and values from files, file names, text of other processes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sherd {

inline constexpr size_t kPrintedBytes = 300;  // of one text, unless a caller asks for another length

/// Returns `text` fit for one line of a terminal or a log. Control characters (C0, DEL, C1, line and paragraph
/// separators) and the marks that reorder what is displayed become `\uXXXX`, bytes that are not UTF-8 `\xNN`. Of a text of
/// more than `most` bytes the whole characters within them are returned, followed by "...".
std::string printable(std::string_view text, size_t most = kPrintedBytes);

/// The same of a message: its line breaks and tabs are kept, and nothing is cut.
std::string printable_lines(std::string_view text);

/// Bytes of the well-formed UTF-8 character at the front of `text` (Unicode, table 3-7); 0 without one.
size_t utf8_character(std::string_view text);

}  // namespace sherd
