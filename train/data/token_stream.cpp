#include <sherd/train/data/token_stream.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include <sherd/base/enum_table.h>
#include <sherd/base/error.h>
#include <sherd/checkpoint/files/content_digest.h>

namespace sherd {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read as they are");

constexpr int64_t kConverted = 16384;  // bytes that are converted at once
constexpr int64_t kSamples = 256;      // blocks of each file
constexpr int64_t kWidthSample = 128;  // tokens that distinguish 16 bits from 32

/// Element i of `bytes` as a number that every type fits.
int64_t token_at(const char* bytes, TokenType type, int64_t i) {
  const auto as = [&](auto value) {
    std::memcpy(&value, bytes + i * static_cast<int64_t>(sizeof value), sizeof value);
    return static_cast<int64_t>(value);
  };
  switch (type) {
    case TokenType::u8:
      return as(uint8_t{});
    case TokenType::u16:
      return as(uint16_t{});
    case TokenType::u32:
      return as(uint32_t{});
    case TokenType::i32:
      return as(int32_t{});
  }
  throw InvalidArgument("a token of unknown type");
}

ContentDigest::Read reader_of(const FileBytes& file) {
  return [&file](int64_t offset, void* to, int64_t bytes) { file.read(offset, to, bytes); };
}

/// The beginning of a digest of a file's tokens.
void add_facts(ContentDigest& digest, const TokenFile& file) {
  const int64_t facts[] = {static_cast<int64_t>(file.type), file.count};
  digest.add(facts, sizeof facts);
}

}  // namespace

const char* name_of(TokenType type) {
  constexpr EnumTable<TokenType, 4> kNames{"u8", "u16", "u32", "i32"};
  return kNames.name(type);
}

int64_t bytes_of(TokenType type) { return type == TokenType::u8 ? 1 : type == TokenType::u16 ? 2 : 4; }

TokenStream::TokenStream(std::string source, std::vector<TokenFile> files)
    : source_(std::move(source)), files_(std::move(files)), begins_{0} {
  for (const TokenFile& file : files_) {
    if (file.count > std::numeric_limits<int64_t>::max() - begins_.back())
      throw InvalidArgument(fmt::format("the files of '{}' have more than 2^63 tokens", source_));
    begins_.push_back(begins_.back() + file.count);
  }
}

bool TokenStream::is_text() const {
  return std::all_of(files_.begin(), files_.end(),
                     [](const TokenFile& f) { return f.type == TokenType::u8; });
}

void TokenStream::read_file(const TokenFile& file, int64_t first, int64_t count, int32_t* to,
                            int64_t vocab) const {
  std::array<char, kConverted> chunk;
  const int64_t width = bytes_of(file.type);
  for (int64_t done = 0; done < count;) {
    const int64_t n = std::min(kConverted / width, count - done);
    file.bytes->read(file.begin + (first + done) * width, chunk.data(), n * width);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t token = token_at(chunk.data(), file.type, i);
      if (token < 0 || token >= vocab)
        throw IoError(
            fmt::format("token {} at position {} of '{}' ({}) is not in the vocabulary of {}; the file was "
                        "made with another "
                        "tokenizer, or its tokens are of another type (--token-format)",
                        token, first + done + i, file.bytes->path().string(), name_of(file.type), vocab));
      to[done + i] = static_cast<int32_t>(token);
    }
    done += n;
  }
}

void TokenStream::read(int64_t first, int64_t count, int32_t* to, int64_t vocab) const {
  if (first < 0 || count < 0 || first > size() - count)
    throw InvalidArgument(fmt::format("tokens [{}, {} + {}) are outside of the {} of '{}'", first, first,
                                      count, size(), source_));
  if (count == 0) return;
  // The last file that begins at `first` or before: those of no tokens are passed over.
  size_t i =
      static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), first) - begins_.begin()) - 1;
  for (; count > 0; ++i) {
    const int64_t n = std::min(count, begins_[i + 1] - first);
    read_file(files_[i], first - begins_[i], n, to, vocab);
    first += n;
    to += n;
    count -= n;
  }
}

void TokenStream::check_beginnings(int64_t count, int64_t vocab) const {
  for (const TokenFile& file : files_) {
    std::vector<int32_t> tokens(static_cast<size_t>(std::min(std::max(count, kWidthSample), file.count)));
    read_file(file, 0, std::min(count, file.count), tokens.data(), vocab);
    if (file.type != TokenType::u16 || file.count < kWidthSample) continue;
    read_file(file, 0, kWidthSample, tokens.data(), 1 << 16);
    int64_t even = 0, odd = 0;
    for (int64_t i = 0; i < kWidthSample; i += 2) {
      even += tokens[static_cast<size_t>(i)] != 0;
      odd += tokens[static_cast<size_t>(i) + 1] != 0;
    }
    if (odd == 0 && even > 0)
      throw IoError(
          fmt::format("every second of the first {} tokens of '{}' (u16) is 0, as in files of 32-bit tokens; "
                      "give --token-format u32",
                      kWidthSample, file.bytes->path().string()));
  }
}

std::string TokenStream::describe() const {
  std::call_once(hashed_, [&] {
    ContentDigest digest;
    for (const TokenFile& file : files_) {
      if (is_text()) {
        digest.add(file.begin, file.count, reader_of(*file.bytes));
      } else {
        add_facts(digest, file);
        digest.add_samples(file.begin, file.count * bytes_of(file.type), kSamples, reader_of(*file.bytes));
      }
    }
    hash_ = digest.value();
  });
  if (is_text()) return fmt::format("{} bytes, XXH3 {:016x}", size(), hash_);
  return fmt::format("{} tokens in {} file{}, sampled XXH3 {:016x}", size(), files_.size(),
                     files_.size() == 1 ? "" : "s", hash_);
}

uint64_t TokenStream::sampled_digest(size_t file, int64_t total) const {
  const TokenFile& f = files_[file];
  const int64_t bytes = f.count * bytes_of(f.type);
  ContentDigest digest;
  add_facts(digest, f);
  // No fewer than describe() takes of token files, and the middle with them; a folder of text may have 100,000 files.
  const int64_t blocks = sample_blocks(bytes, total, is_text() ? 3 : kSamples + 1);
  digest.add_samples(f.begin, bytes, blocks, reader_of(*f.bytes));
  return digest.value();
}

}  // namespace sherd
