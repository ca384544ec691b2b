#include "train_gpt/run/sample_text.h"

#include <fmt/format.h>

namespace train_gpt {
namespace {

std::string shown_byte(char byte) {
  if (byte == '\n') return "\n  | ";
  if ((byte >= ' ' && byte <= '~') || byte == '\t') return std::string(1, byte);
  return fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
}

}  // namespace

std::string sample_heading() { return "generated text\n  | "; }

std::string shown_bytes(std::string_view bytes) {
  std::string shown;
  for (const char c : bytes) shown += shown_byte(c);
  return shown;
}

std::string shown_text(std::string_view utf8) {
  std::string shown;
  for (size_t i = 0; i < utf8.size(); ++i) {
    const auto byte = static_cast<unsigned char>(utf8[i]);
    const bool control =
        byte == 0xC2 && i + 1 < utf8.size() && static_cast<unsigned char>(utf8[i + 1]) < 0xA0;
    if (control)
      shown += shown_byte(utf8[i]) + shown_byte(utf8[i + 1]);
    else
      shown += byte < 0x80 ? shown_byte(utf8[i]) : std::string(1, utf8[i]);
    if (control) ++i;
  }
  return shown;
}

}  // namespace train_gpt
