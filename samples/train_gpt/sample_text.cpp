#include "sample_text.h"

#include <fmt/format.h>

namespace train_gpt {

std::string format_sample(std::string_view text) {
  std::string shown = "generated text\n  | ";
  for (const char c : text) {
    if (c == '\n') {
      shown += "\n  | ";
    } else if ((c >= ' ' && c <= '~') || c == '\t') {
      shown += c;
    } else {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return shown + '\n';
}

}  // namespace train_gpt
