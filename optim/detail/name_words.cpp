#include <sherd/optim/detail/name_words.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace sherd {
namespace {

enum class Kind { other, small, capital, digit };

Kind kind_of(char c) {
  const auto u = static_cast<unsigned char>(c);
  if (std::isdigit(u)) return Kind::digit;
  if (std::isupper(u)) return Kind::capital;
  // Bytes of other alphabets belong to words, too.
  return std::islower(u) || u >= 0x80 ? Kind::small : Kind::other;
}

bool digits(std::string_view word) {
  return !word.empty() &&
         std::all_of(word.begin(), word.end(), [](char c) { return kind_of(c) == Kind::digit; });
}

/// Splits at separators, between letters and digits, and at capitals: "HTTPServer2" gives http, server, 2.
/// Lower case.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  bool open = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const Kind now = kind_of(text[i]), last = i > 0 ? kind_of(text[i - 1]) : Kind::other;
    const Kind next = i + 1 < text.size() ? kind_of(text[i + 1]) : Kind::other;
    if (now == Kind::other) {
      open = false;
      continue;
    }
    // A capital starts a word after a small letter, or before one: the S of "HTTPServer".
    const bool turns = (now == Kind::digit) != (last == Kind::digit) ||
                       (now == Kind::capital && (last == Kind::small || next == Kind::small));
    if (!open || turns) words.emplace_back();
    open = true;
    words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(text[i])));
  }
  return words;
}

}  // namespace

// A part that is a number is an index in a list of modules.
bool NamePart::is_number() const { return digits(text); }
bool NamePart::is_listed() const {
  if (words.empty() || !digits(words.back())) return false;
  return words.size() == 1 || std::any_of(words.begin(), words.end(), [](const std::string& w) {
           return w == "layer" || w == "block" || w == "stage" || w == "expert";
         });
}
bool NamePart::has(std::string_view word) const {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::vector<NamePart> parts_of(std::string_view name) {
  std::vector<NamePart> parts;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view text = name.substr(begin, end - begin);
    parts.push_back({std::string(text), words_of(text)});
    begin = end + 1;
  }
  return parts;
}

bool NamedPlace::numbered() const {
  return std::any_of(above.begin(), above.end(), [](const NamePart& p) { return p.is_listed(); });
}

/// Splits a name into the leaf (weight, bias), the module that owns it, and the modules above.
NamedPlace place_of(std::string_view name) {
  static constexpr std::array<std::string_view, 6> kOfAModule = {"weight", "bias", "kernel",
                                                                 "w",      "b",    "weights"};
  NamedPlace place;
  std::vector<NamePart> parts = parts_of(name);
  place.leaf = parts.back();
  place.bare = std::find(kOfAModule.begin(), kOfAModule.end(), place.leaf.text) == kOfAModule.end();
  if (!place.bare) parts.pop_back();
  // Indices between the owner and the leaf are skipped: "experts.3.weight" belongs to "experts".
  while (!parts.empty() && parts.back().is_number()) parts.pop_back();
  if (!parts.empty()) {
    place.owner = parts.back();
    parts.pop_back();
  }
  for (const NamePart& p : parts) place.prefix += p.text + ".";
  place.above = std::move(parts);
  return place;
}

}  // namespace sherd
