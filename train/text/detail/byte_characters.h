// Characters that stand for bytes in byte-level vocabularies (GPT-2's table).
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace sherd {

/// Bytes by character: printable ones of Latin-1 for themselves, the other bytes, in order, from U+0100 on. Below
/// U+0144; -1 where a character stands for none.
const std::array<int, 0x144>& bytes_of_characters();

/// Returns the characters of all bytes, as UTF-8.
std::string byte_characters(std::string_view bytes);

}  // namespace sherd
