#include <sherd/base/printable.h>

#include <fmt/format.h>

namespace sherd {
namespace {

unsigned code_point(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0);
  unsigned code = byte(0) & (0xFFu >> (character.size() + 1));
  for (size_t i = 1; i < character.size(); ++i) code = code << 6 | (byte(i) & 0x3Fu);
  return code;
}

// A terminal acts on these or displays what follows in another order.
bool is_hidden(unsigned code) {
  const auto within = [&](unsigned low, unsigned high) { return low <= code && code <= high; };
  return code < 0x20 || within(0x7F, 0x9F) || code == 0x061C || within(0x200E, 0x200F) ||
         within(0x2028, 0x202E) || within(0x2066, 0x2069);
}

std::string escaped(std::string_view text, bool lines) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = utf8_character(text);
    const std::string_view character = text.substr(0, length == 0 ? 1 : length);
    text.remove_prefix(character.size());
    if (length == 0) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(character[0]));
    } else if (const unsigned code = code_point(character);
               is_hidden(code) && !(lines && (code == '\n' || code == '\t'))) {
      out += fmt::format("\\u{:04x}", code);
    } else {
      out += character;
    }
  }
  return out;
}

}  // namespace

size_t utf8_character(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto within = [&](size_t i, unsigned low, unsigned high) {
    return low <= byte(i) && byte(i) <= high;
  };
  if (text.empty()) return 0;
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = within(0, 0xC2, 0xDF) ? 2 : within(0, 0xE0, 0xEF) ? 3 : within(0, 0xF0, 0xF4) ? 4 : 0;
  // The second byte is bounded further: no long forms, no surrogates, nothing past U+10FFFF.
  const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (length == 0 || !within(1, low, high)) return 0;
  for (size_t i = 2; i < length; ++i)
    if (!within(i, 0x80, 0xBF)) return 0;
  return length;
}

std::string printable(std::string_view text, size_t most) {
  if (text.size() <= most) return escaped(text, false);
  size_t end = most;
  while (end > 0 && most - end < 3 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return escaped(text.substr(0, end), false) + "...";
}

std::string printable_lines(std::string_view text) { return escaped(text, true); }

}  // namespace sherd
