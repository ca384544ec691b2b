#include <sherd/train/data/token_format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <sherd/base/detail/foreign_content.h>
#include <sherd/base/error.h>
#include <sherd/train/data/megatron_index.h>

namespace sherd {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kLlmcU16 = 20240520, kLlmcU32 = 20240801;
constexpr int64_t kLlmcHeader = 256 * 4;

[[noreturn]] void refuse_tokens(const FileBytes& file, const std::string& why) {
  throw IoError(fmt::format("the token file '{}' {}", file.path().string(), why));
}

/// Refuses files that hold something else, such as the text that tokens are made of: 64 and more printable bytes. In
/// token files each second byte, or more of them, is often below 32.
void refuse_other_content(const FileBytes& file) {
  constexpr int64_t kMost = 4096, kFewest = 64;
  std::string begin(static_cast<size_t>(std::min(file.size(), kMost)), '\0');
  if (begin.empty()) return;
  file.read(0, begin.data(), std::ssize(begin));
  constexpr std::string_view kIds =
      "; write the token ids alone, 16 or 32 bits each (NumPy: ids.astype('uint16').tofile(FILE))";
  if (const std::string what = foreign_content(begin); what.find("safetensors") != what.npos)
    refuse_tokens(file, what.substr(0, what.find(';')).append(kIds));
  else if (!what.empty())
    refuse_tokens(file, what);
  if (begin.size() > 9 && begin[8] == '{' && begin[9] == '"')
    refuse_tokens(file, std::string("is a safetensors file").append(kIds));
  const bool text = std::ranges::all_of(
      begin, [](char c) { return (c >= ' ' && c <= '~') || c == '\n' || c == '\r' || c == '\t'; });
  if (!text || std::ssize(begin) < kFewest) return;
  if (begin.starts_with('{'))
    refuse_tokens(
        file,
        "holds JSON, not tokens; make tokens of it: scripts/tokenize.py --tokenizer FOLDER --out OUT "
        "FILE, with --chat TEMPLATE where the lines are chats (for --sft)");
  refuse_tokens(file,
                "holds text, not tokens; make tokens of it: scripts/tokenize.py --tokenizer FOLDER --out OUT "
                "FILE");
}

TokenFile raw(std::shared_ptr<const FileBytes> bytes, TokenType type) {
  refuse_other_content(*bytes);
  const int64_t width = bytes_of(type), size = bytes->size();
  if (size % width != 0)
    refuse_tokens(
        *bytes,
        fmt::format(
            "has {} bytes, which are not a whole number of {} tokens; it was cut short, or its tokens are of "
            "another type (--token-format)",
            size, name_of(type)));
  return {std::move(bytes), 0, size / width, type};
}

std::optional<int32_t> first_word(const FileBytes& bytes) {
  int32_t word;
  if (bytes.size() < 4) return std::nullopt;
  bytes.read(0, &word, sizeof word);
  return word;
}

bool is_llmc(const FileBytes& bytes) {
  const std::optional<int32_t> word = first_word(bytes);
  return word == kLlmcU16 || word == kLlmcU32;
}

TokenFile llmc(std::shared_ptr<const FileBytes> bytes) {
  if (!is_llmc(*bytes))
    refuse_tokens(*bytes,
                  fmt::format("does not begin with llm.c's {} or {}; name its own format with --token-format",
                              kLlmcU16, kLlmcU32));
  if (bytes->size() < kLlmcHeader)
    refuse_tokens(*bytes, fmt::format("has {} bytes, less than llm.c's header of {}; it was cut short",
                                      bytes->size(), kLlmcHeader));
  std::array<int32_t, 3> header;
  bytes->read(0, header.data(), sizeof header);
  const TokenType type = header[0] == kLlmcU16 ? TokenType::u16 : TokenType::u32;
  if (header[1] != 1)
    refuse_tokens(*bytes, fmt::format("is of version {} of llm.c's format; 1 can be read", header[1]));
  const int64_t count = header[2], size = bytes->size() - kLlmcHeader;
  if (count < 0 || count * bytes_of(type) != size)
    refuse_tokens(*bytes,
                  fmt::format("has a header for {} {} tokens, {} bytes, but {} bytes follow it; the file was "
                              "cut short or written to twice: make it again",
                              count, name_of(type), count * bytes_of(type), size));
  return {std::move(bytes), kLlmcHeader, count, type};
}

fs::path with_suffix(const fs::path& path, const char* suffix) { return fs::path(path.string() + suffix); }

/// X of X.bin, X.idx and X itself.
fs::path megatron_prefix(fs::path path) {
  const fs::path suffix = path.extension();
  return suffix == ".bin" || suffix == ".idx" ? path.replace_extension() : path;
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

bool has_index(const fs::path& path) {
  const fs::path prefix = megatron_prefix(path);
  return is_there(with_suffix(prefix, ".idx")) && is_there(with_suffix(prefix, ".bin"));
}

TokenFile megatron(const fs::path& path) {
  const fs::path prefix = megatron_prefix(path);
  if (!is_there(with_suffix(prefix, ".idx")) && is_there(path)) refuse_other_content(*FileBytes::map(path));
  const auto index = FileBytes::map(with_suffix(prefix, ".idx"));
  auto bin = FileBytes::map(with_suffix(prefix, ".bin"));
  const TokenType type = read_megatron_index(*index, *bin);
  const int64_t count = bin->size() / bytes_of(type);
  return {std::move(bin), 0, count, type};
}

TokenFile guessed(const fs::path& path) {
  if (has_index(path)) return megatron(path);
  auto bytes = FileBytes::map(path);
  if (is_llmc(*bytes)) return llmc(std::move(bytes));
  if (is_megatron_index(*bytes))
    refuse_tokens(*bytes, "is an index of Megatron's; name it X.idx, with its tokens beside it as X.bin");
  refuse_other_content(*bytes);
  refuse_tokens(*bytes,
                "does not name the type of its tokens; choose --token-format u16 or u32 (files of llm.c and "
                "Megatron are detected)");
}

TokenFile opened(const fs::path& path, TokenFormat format) {
  switch (format) {
    case TokenFormat::automatic:
      return guessed(path);
    case TokenFormat::u16:
      return raw(FileBytes::map(path), TokenType::u16);
    case TokenFormat::u32:
      return raw(FileBytes::map(path), TokenType::u32);
    case TokenFormat::llmc:
      return llmc(FileBytes::map(path));
    case TokenFormat::megatron:
      return megatron(path);
  }
  throw InvalidArgument("an unknown format of token files");
}

}  // namespace

TokenFile open_token_file(const fs::path& path, TokenFormat format) {
  TokenFile file = opened(path, format);
  if (file.count == 0)
    refuse_tokens(*file.bytes, "has no tokens; make it again, or leave it out of --tokens");
  return file;
}

}  // namespace sherd
