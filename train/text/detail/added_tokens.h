// Tokens of a tokenizer.json that are found in text as they are, before it is split into words.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sherd {

struct AddedToken {
  std::string text;  // not empty
  int32_t id = 0;
  bool single_word = false;             // not between characters of words
  bool lstrip = false, rstrip = false;  // takes the white space to this side with it
};

/// Finds tokens: the leftmost, of several the longest, of equal ones the first in the list. Immutable.
class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);

  struct Part {
    std::string_view text;
    int32_t token;  // -1: text between tokens
  };
  /// Returns the parts of valid UTF-8 text, none of which is empty.
  std::vector<Part> split(std::string_view text) const;

 private:
  const AddedToken* longest(std::string_view text) const;

  std::vector<AddedToken> tokens_;  // sorted
  std::array<bool, 256> begins_{};  // by first byte
};

}  // namespace sherd
