#include <sherd/train/text/detail/normal_form.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include <utf8proc.h>

namespace sherd {
namespace {

auto combining_class(int32_t character) { return utf8proc_get_property(character)->combining_class; }

}  // namespace

std::string normalized(std::string_view text, NormalForm form) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; }))
    return std::string(text);
  const bool composes = form == NormalForm::NFC || form == NormalForm::NFKC;
  const bool compatible = form == NormalForm::NFKC || form == NormalForm::NFKD;
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                     (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<int32_t> characters;
  characters.reserve(text.size());
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  std::array<int32_t, 32> some{};  // U+FDFA becomes 18
  for (utf8proc_ssize_t at = 0; at < std::ssize(text);) {
    int32_t character = 0;
    at += utf8proc_iterate(bytes + at, std::ssize(text) - at, &character);
    const auto count = utf8proc_decompose_char(character, some.data(), std::ssize(some), options, nullptr);
    characters.insert(characters.end(), some.begin(), some.begin() + count);
  }
  // utf8proc's own sorting takes the square of a run's length.
  const auto is_mark = [](int32_t c) { return combining_class(c) != 0; };
  for (auto from = characters.begin();;) {
    from = std::find_if(from, characters.end(), is_mark);
    if (from == characters.end()) break;
    const auto end = std::find_if_not(from, characters.end(), is_mark);
    std::stable_sort(from, end, [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); });
    from = end;
  }
  characters.resize(
      static_cast<size_t>(utf8proc_normalize_utf32(characters.data(), std::ssize(characters), options)));
  std::string out;
  out.reserve(text.size());
  for (const int32_t character : characters) {
    std::array<uint8_t, 4> encoded{};
    const auto count = utf8proc_encode_char(character, encoded.data());
    out.append(reinterpret_cast<const char*>(encoded.data()), static_cast<size_t>(count));
  }
  return out;
}

}  // namespace sherd
