// Requirements on every refusal, for any input.
#pragma once

#include <stdexcept>
#include <string_view>

#include <sherd/base/printable.h>

/// @throws std::logic_error for a message that drives a terminal, holds a line break, or repeats long input.
inline void require_printable(std::string_view message) {
  if (message.size() > 16384) throw std::logic_error("a message is as long as its input");
  if (sherd::printable(message, message.size()) != message)
    throw std::logic_error("a message is not printable");
}
