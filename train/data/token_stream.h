// Tokens of one or several files, concatenated.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <sherd/train/data/file_bytes.h>

namespace sherd {

/// Storage of a token, lowest byte first.
enum class TokenType : uint8_t { u8, u16, u32, i32 };
/// "u16".
const char* name_of(TokenType type);
int64_t bytes_of(TokenType type);

/// Position of the tokens in one file.
struct TokenFile {
  std::shared_ptr<const FileBytes> bytes;
  int64_t begin = 0;  ///< the first token's byte
  int64_t count = 0;  ///< tokens
  TokenType type = TokenType::u8;
};

/// Files as one stream, in the given order; a window may begin in one and end in the next. Immutable: open
/// once, share among ranks.
class TokenStream {
 public:
  /// `source` names the origin of the tokens in messages.
  TokenStream(std::string source, std::vector<TokenFile> files);

  const std::string& source() const { return source_; }
  const std::vector<TokenFile>& files() const { return files_; }
  int64_t size() const { return begins_.back(); }
  /// Returns whether every token is a byte of text.
  bool is_text() const;
  /// "bytes" of text, else "tokens".
  const char* unit() const { return is_text() ? "bytes" : "tokens"; }

  /// Writes the tokens [first, first + count).
  /// @throws IoError naming file and position of a token that is `vocab` or more (or negative);
  /// InvalidArgument for a range that is not inside the stream.
  void read(int64_t first, int64_t count, int32_t* to, int64_t vocab) const;
  /// Reads up to `count` tokens from each file's beginning, to find errors of read() early: most files that
  /// do not fit a vocabulary fail there. @throws IoError, too, for a file of u16 that looks like one of u32.
  void check_beginnings(int64_t count, int64_t vocab) const;

  /// Identifies the data: "11714044 bytes, XXH3 0123456789abcdef" of text, whose bytes are all hashed, and
  /// "9000000000 tokens in 3 files, sampled XXH3 0123456789abcdef" of tokens. The sample holds every file's
  /// size, type and tokens: all of them up to 1 MiB, else 256 blocks of 4 KiB at equal distances, including
  /// the first and the last. A change between them is not detected. Computed once, by the first call.
  std::string describe() const;
  /// Returns a digest of one file's type, count and tokens, for a comparison among ranks: of sample_blocks()
  /// of them, where `total` bytes are compared together.
  uint64_t sampled_digest(size_t file, int64_t total) const;

 private:
  void read_file(const TokenFile& file, int64_t first, int64_t count, int32_t* to, int64_t vocab) const;

  std::string source_;
  std::vector<TokenFile> files_;
  std::vector<int64_t> begins_;  // of each file in the stream, and the end
  mutable std::once_flag hashed_;
  mutable uint64_t hash_ = 0;
};

}  // namespace sherd
