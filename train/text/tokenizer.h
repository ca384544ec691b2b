// Text to tokens and back, by a tokenizer.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sherd {

class TextEncoder;

/// A tokenizer.json of Hugging Face's `tokenizers`, for models of type BPE. Tokens are those of that package's encode(),
/// texts those of its decode(), byte by byte. Immutable; threads may share it.
///
/// Decoders. ByteLevel (GPT-2, Llama 3, Qwen): each character of a token is a byte; a token with other
/// characters is taken as it is. Sequence of Replace, ByteFallback, Fuse and Strip (Llama 2, Mistral):
/// strings are replaced in each token, tokens "<0xNN>" are bytes, and so many leading characters of the whole
/// text are dropped.
///
/// Parts that encode, alone or in a Sequence:
///  - added tokens with single_word, lstrip, rstrip, normalized;
///  - normalizer: NFC, NFD, NFKC, NFKD, Prepend, Replace;
///  - pre_tokenizer: ByteLevel, Digits, Metaspace, Split by a String or a Regex that Oniguruma and PCRE2 read alike;
///  - model: ignore_merges, byte_fallback, unk_token, fuse_unk;
///  - post_processor: ByteLevel, TemplateProcessing.
/// Truncation and padding of the file are ignored.
///
/// Characters are those of the Unicode version of PCRE2 (splitting) and utf8proc (normalizers): 14 in Debian 12.
/// `tokenizers` 0.23 splits by Unicode 16 and normalizes by Unicode 9. A text with characters that only one of both
/// versions has may have other tokens.
class Tokenizer {
 public:
  /// @throws IoError naming the file: unreadable, no tokenizer.json, a model or decoder of other types (by
  /// name), numbers of tokens that are negative, double or far above their count, JSON beyond the limits of all files, more
  /// than 64 Replace steps, and steps that would make the texts of all tokens larger than 4 times the file.
  [[nodiscard]] static std::shared_ptr<const Tokenizer> load(const std::filesystem::path& path);
  /// The same of a file's contents; `source` names it in messages.
  [[nodiscard]] static std::shared_ptr<const Tokenizer> parse(std::string_view json,
                                                              const std::string& source);

  /// Returns the largest token plus one. A model's vocabulary may be larger (padded).
  int64_t size() const { return static_cast<int64_t>(pieces_.size()); }
  /// Returns the token with this exact spelling ("</s>"), or -1.
  int64_t find(std::string_view token) const;

  /// Returns the tokens of a text. Spellings of special tokens in it are these tokens. @param add_special adds the tokens
  /// of the file's post_processor, such as <|begin_of_text|>. Takes O(n log n) for n bytes. @throws InvalidArgument with the
  /// offset of the byte that is not UTF-8, or for a text that the file's patterns cannot split; NotSupported naming the file
  /// and the part that cannot be followed. Such a file still decodes.
  [[nodiscard]] std::vector<int32_t> encode(std::string_view text, bool add_special = true) const;

  /// Returns the text of all tokens. @param skip_special leaves out special tokens.
  [[nodiscard]] std::string decode(const std::vector<int32_t>& tokens, bool skip_special = false) const;

 private:
  friend class TextStream;
  friend class TokenizerFile;
  struct Piece {
    std::string token;                                  // as in the file
    std::string text;                                   // its text when decoded alone
    bool known = false, special = false, byte = false;  // byte: text is one byte of a run (ByteFallback)
  };
  bool byte_level_ = true;
  std::string strip_;        // a character that is dropped at the text's beginning ...
  int64_t strip_count_ = 0;  // ... so often at most
  std::vector<Piece> pieces_;
  std::shared_ptr<const TextEncoder> encoder_;
  std::string source_, no_encoder_;  // for messages; why encode() fails
};

/// Text as it is made, token by token: what would change with the next token is held back, namely characters
/// of which bytes are missing. The pieces together are Tokenizer::decode() of all tokens.
class TextStream {
 public:
  explicit TextStream(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special = false);

  /// The text that became certain with this token. A token that the tokenizer does not have (a model's
  /// vocabulary may be padded) is U+FFFD. @throws InvalidArgument for a negative one.
  [[nodiscard]] std::string add(int32_t token);
  /// The bytes still held back; bytes that make no character are U+FFFD. The stream starts over.
  [[nodiscard]] std::string finish();

 private:
  std::string stripped(std::string text);
  std::string end_of_bytes();

  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  std::string held_;      // bytes that are not whole characters yet; with ByteFallback, a run of bytes
  int64_t stripped_ = 0;  // characters dropped, or -1 when the beginning is over
};

}  // namespace sherd
