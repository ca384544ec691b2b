#include <sherd/train/text/detail/added_tokens.h>

#include <algorithm>
#include <utility>

#include <utf8proc.h>

namespace sherd {
namespace {

int32_t character_at(std::string_view text) {
  int32_t character = -1;
  utf8proc_iterate(reinterpret_cast<const uint8_t*>(text.data()), std::ssize(text), &character);
  return character;
}

/// Returns where the last character of a text that is not empty begins.
size_t last_character(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0u) == 0x80) --at;
  return at;
}

bool is_space(int32_t c) {
  const auto category = utf8proc_category(c);
  return (c >= '\t' && c <= '\r') || c == 0x85 ||
         (category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP);
}

/// Unicode's word characters (UTS 18, annex C): alphabetic, marks, decimal digits, connectors, joiners.
bool is_word(int32_t c) {
  const auto category = utf8proc_category(c);
  const auto within = [c](int32_t low, int32_t high) { return c >= low && c <= high; };
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
         category == UTF8PROC_CATEGORY_PC || within(0x200C, 0x200D) || within(0x24B6, 0x24E9) ||
         within(0x1F130, 0x1F149) || within(0x1F150, 0x1F169) || within(0x1F170, 0x1F189);
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.text < b.text; });
  const auto same = [](const AddedToken& a, const AddedToken& b) { return a.text == b.text; };
  tokens_.erase(std::unique(tokens_.begin(), tokens_.end(), same), tokens_.end());
  for (const AddedToken& token : tokens_) begins_[static_cast<uint8_t>(token.text[0])] = true;
}

const AddedToken* AddedTokens::longest(std::string_view text) const {
  const AddedToken* found = nullptr;
  const auto byte_of = [](char c) { return static_cast<uint8_t>(c); };
  auto first = tokens_.begin(), last = tokens_.end();  // those that begin with n bytes of the text
  for (size_t n = 0; first != last; ++n) {
    if (first->text.size() == n) found = &*first++;
    if (n == text.size()) break;
    const uint8_t byte = byte_of(text[n]);
    first = std::partition_point(first, last, [&](const AddedToken& t) { return byte_of(t.text[n]) < byte; });
    last = std::partition_point(first, last, [&](const AddedToken& t) { return byte_of(t.text[n]) == byte; });
  }
  return found;
}

std::vector<AddedTokens::Part> AddedTokens::split(std::string_view text) const {
  std::vector<Part> parts;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = begins_[static_cast<uint8_t>(text[at])] ? longest(text.substr(at)) : nullptr;
    if (!token) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->text.size();
    at = end;
    if (token->single_word) {
      const bool before =
          begin > 0 && is_word(character_at(text.substr(last_character(text.substr(0, begin)))));
      if (before || (end < text.size() && is_word(character_at(text.substr(end))))) continue;
    }
    while (token->lstrip && begin > done) {
      const size_t previous = last_character(text.substr(0, begin));
      if (!is_space(character_at(text.substr(previous)))) break;
      begin = previous;
    }
    if (token->rstrip)
      while (end < text.size() && is_space(character_at(text.substr(end))))
        end += static_cast<size_t>(utf8proc_utf8class[static_cast<uint8_t>(text[end])]);
    if (done < begin) parts.push_back({text.substr(done, begin - done), -1});
    parts.push_back({text.substr(begin, end - begin), token->id});
    done = end;  // what rstrip takes may hold the next token, which is found all the same
  }
  if (done < text.size()) parts.push_back({text.substr(done), -1});
  return parts;
}

}  // namespace sherd
