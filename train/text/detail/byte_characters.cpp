#include <sherd/train/text/detail/byte_characters.h>

#include <cstdint>

namespace sherd {

const std::array<int, 0x144>& bytes_of_characters() {
  static const std::array<int, 0x144> table = [] {
    std::array<int, 0x144> bytes;
    bytes.fill(-1);
    size_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      bytes[printable ? static_cast<size_t>(byte) : next++] = byte;
    }
    return bytes;
  }();
  return table;
}

std::string byte_characters(std::string_view bytes) {
  static const std::array<std::string, 256> table = [] {
    std::array<std::string, 256> characters;
    for (size_t character = 0; character < bytes_of_characters().size(); ++character) {
      const int byte = bytes_of_characters()[character];
      if (byte < 0) continue;
      std::string& text = characters[static_cast<size_t>(byte)];
      if (character >= 0x80) text = static_cast<char>(0xC0u | character >> 6);
      text += static_cast<char>(character < 0x80 ? character : 0x80u | (character & 0x3Fu));
    }
    return characters;
  }();
  std::string text;
  text.reserve(bytes.size());
  for (const char byte : bytes) text += table[static_cast<uint8_t>(byte)];
  return text;
}

}  // namespace sherd
