#include <sherd/fsdp/detail/names.h>

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include <sherd/kernels/device/error.h>

namespace sherd {
namespace {

// Bytes of the character at the front of `text`, 0 when that is not well-formed UTF-8 (Unicode, table 3-7).
size_t character(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto within = [&](size_t i, unsigned low, unsigned high) {
    return low <= byte(i) && byte(i) <= high;
  };
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

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

std::string printable(std::string_view text) {
  std::string shown;
  for (const char c : text)
    shown += is_control(c) || static_cast<unsigned char>(c) >= 0x80
                 ? fmt::format("\\x{:02x}", static_cast<unsigned char>(c))
                 : std::string(1, c);
  return shown;
}

}  // namespace

void check_name(std::string_view what, std::string_view name) {
  if (name.empty()) throw InvalidArgument(fmt::format("a {} has no name; give it one", what));
  for (std::string_view rest = name; !rest.empty();) {
    const size_t length = character(rest);
    if (length == 0)
      throw InvalidArgument(
          fmt::format("{} name '{}' is not UTF-8 from byte {} on; checkpoints hold names as UTF-8", what,
                      printable(name), name.size() - rest.size()));
    rest.remove_prefix(length);
  }
  if (std::any_of(name.begin(), name.end(), is_control))
    throw InvalidArgument(
        fmt::format("{} name '{}' has control characters; use printable ones", what, printable(name)));
}

}  // namespace sherd
