// Generated text as it is printed.
#pragma once

#include <string>
#include <string_view>

namespace train_gpt {

/// Generated text under a heading, indented; bytes that a terminal would not print as one character each are
/// shown as \xNN, line breaks are kept.
std::string format_sample(std::string_view text);

}  // namespace train_gpt
