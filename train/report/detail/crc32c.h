// CRC-32C (Castagnoli; RFC 3720 appendix B.4), as the frames of TFRecord files have it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace sherd::detail {

/// Table of the checksums of single bytes, the least significant bit first.
inline constexpr std::array<uint32_t, 256> kCrc32cTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    table[byte] = crc;
  }
  return table;
}();

constexpr uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = (crc >> 8) ^ kCrc32cTable[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return ~crc;
}

/// Returns the rotated and shifted checksum, so that the checksum of bytes that hold checksums does not
/// become trivial.
constexpr uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

}  // namespace sherd::detail
