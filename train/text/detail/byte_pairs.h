// Byte-pair encoding of words: the model of type BPE.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sherd {

/// Merges the characters of a word into tokens, the pair of the lowest rank first, the leftmost of several. A word of
/// n characters takes O(n log n). Immutable once filled.
class BytePairs {
 public:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> vocab;
  bool ignore_merges = false;  // a word that is a token is not merged
  bool fuse_unknown = false;   // neighbours that are unknown are one token
  std::string unknown;         // token of characters without one; empty: they are left out
  bool byte_fallback =
      false;  // bytes of a character without a token are "<0xNN>", if all of these are tokens

  /// Adds the merge of the next rank. @throws InvalidArgument with the token that the vocabulary lacks.
  void add_merge(std::string_view left, std::string_view right);
  /// Appends the tokens of a word. @throws InvalidArgument when `unknown` is needed and not in the vocabulary.
  void encode(std::string_view word, std::vector<int32_t>& tokens) const;

  /// Returns the token, or -1.
  int32_t find(std::string_view token) const;

 private:
  struct Merge {
    int32_t rank, token;
  };
  const Merge* merge_of(int32_t left, int32_t right) const;
  std::vector<int32_t> characters(std::string_view word) const;

  std::unordered_map<uint64_t, Merge> merges_;  // by both tokens
  int32_t next_rank_ = 0;
};

}  // namespace sherd
