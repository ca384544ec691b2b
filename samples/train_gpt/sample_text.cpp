#include "sample_text.h"

#include <fmt/format.h>

namespace train_gpt {

std::string sample_heading() { return "generated text\n  | "; }

std::string shown_byte(char byte) {
  if (byte == '\n') return "\n  | ";
  if ((byte >= ' ' && byte <= '~') || byte == '\t') return std::string(1, byte);
  return fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
}

std::string format_sample(std::string_view text) {
  std::string shown = sample_heading();
  for (const char c : text) shown += shown_byte(c);
  return shown + '\n';
}

}  // namespace train_gpt
