#include <sherd/train/text/utf8.h>

#include <cstddef>
#include <cstdint>

namespace sherd {
namespace {

/// The length of a character by its first byte, and the bounds of its second (Unicode, table 3-7); 0 for
/// none.
struct Lead {
  size_t length;
  uint8_t least, most;
};

Lead lead(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};  // no surrogates
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

/// Returns the number of valid bytes of the character that begins `bytes`; `whole`: all of them.
size_t right_bytes(std::string_view bytes, const Lead& first, bool& whole) {
  size_t n = 1;
  uint8_t least = first.least, most = first.most;
  for (; n < first.length && n < bytes.size(); ++n, least = 0x80, most = 0xBF) {
    const auto byte = static_cast<uint8_t>(bytes[n]);
    if (byte < least || byte > most) break;
  }
  whole = n == first.length;
  return n;
}

}  // namespace

std::string_view take_characters(std::string_view bytes, std::string& text) {
  while (!bytes.empty()) {
    const Lead first = lead(static_cast<uint8_t>(bytes[0]));
    bool whole = false;
    const size_t n = right_bytes(bytes, first, whole);
    if (first.length > 0 && !whole && n == bytes.size()) return bytes;
    text += whole ? bytes.substr(0, n) : kReplacementCharacter;
    bytes.remove_prefix(n);
  }
  return bytes;
}

}  // namespace sherd
