// Encoding half of a tokenizer.json: text to tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <sherd/train/text/detail/added_tokens.h>
#include <sherd/train/text/detail/byte_pairs.h>

namespace sherd {

/// Refuses steps that multiply a text. @throws InvalidArgument as TextEncoder::encode().
void require_growth(size_t from, size_t to);

/// Steps in the order of `tokenizers`: added tokens, normalizer, normalized added tokens, splitting into words, merges,
/// special tokens of the post-processor. Immutable.
class TextEncoder {
 public:
  /// Reads the parts of a file whose vocabulary is checked. @throws IoError naming `source` and the part that is
  /// not supported, or wrong.
  static std::shared_ptr<const TextEncoder> read(const nlohmann::json& file, const std::string& source);

  /// As Tokenizer::encode(). @throws InvalidArgument as the end of a sentence about the tokenizer.
  std::vector<int32_t> encode(std::string_view text, bool add_special) const;

 private:
  friend class TextEncoderFile;
  struct Piece {
    std::string text;
    int32_t token = -1;  // of an added token
    bool first = false;  // at the beginning of the whole text
  };
  using Normalizer = std::function<std::string(std::string)>;
  using PreTokenizer = std::function<void(Piece, std::vector<Piece>&)>;

  std::string normalize(std::string_view text) const;

  AddedTokens as_they_are_, normalized_;
  std::vector<Normalizer> normalizers_;
  std::vector<PreTokenizer> pre_tokenizers_;
  BytePairs model_;
  std::vector<int32_t> template_ = {-1};  // -1: the text
};

}  // namespace sherd
