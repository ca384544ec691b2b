// Text of files that others wrote.
#pragma once

#include <string>
#include <string_view>

namespace sherd {

/// Safe to print: quoted, escaped, and cut when absurdly long.
std::string shown(std::string_view text);
bool is_utf8(std::string_view text);

}  // namespace sherd
