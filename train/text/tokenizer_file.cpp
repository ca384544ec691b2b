// Reader of the decoding half of a tokenizer.json.
#include <sherd/train/text/tokenizer.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <sherd/base/detail/json_text.h>
#include <sherd/base/error.h>
#include <sherd/base/printable.h>
#include <sherd/train/text/detail/byte_characters.h>
#include <sherd/train/text/detail/text_encoder.h>
#include <sherd/train/text/detail/tokenizer_json.h>

namespace sherd {
namespace {

using nlohmann::json;

/// The bytes that a token's characters stand for; the token itself when one of them stands for none.
std::string byte_level_text(const std::string& token) {
  const std::array<int, 0x144>& table = bytes_of_characters();
  std::string bytes;
  for (size_t i = 0; i < token.size(); ++i) {
    const auto first = static_cast<uint8_t>(token[i]);
    size_t character = first;
    if (first >= 0x80) {
      if (first >= 0xE0 || i + 1 == token.size()) return token;  // of three bytes and more: none of the table
      character = (first & 0x1Fu) << 6 | (static_cast<uint8_t>(token[++i]) & 0x3Fu);
    }
    if (character >= table.size() || table[character] < 0) return token;
    bytes += static_cast<char>(table[character]);
  }
  return bytes;
}

/// The byte of "<0xNN>".
std::optional<char> fallback_byte(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    value = 16 * value + digit;
  }
  return static_cast<char>(value);
}

size_t count_of(std::string_view text, std::string_view pattern) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(pattern, at)) != text.npos; at += pattern.size()) ++count;
  return count;
}

std::string replaced(std::string_view text, std::string_view pattern, std::string_view with, size_t bytes) {
  std::string out;
  out.reserve(bytes);
  for (size_t at; (at = text.find(pattern)) != text.npos; text.remove_prefix(at + pattern.size())) {
    out += text.substr(0, at);
    out += with;
  }
  return out.append(text);
}

// Limits of a Replace's size and of their number: files have one or two, of a few bytes. Texts of all tokens
// together may have kGrowth times the bytes of the file, and so many more.
constexpr size_t kMaxPattern = 1024, kMaxReplacements = 64, kGrowth = 4, kMoreText = size_t{64} << 10;

}  // namespace

/// Reads one file.
class TokenizerFile : TokenizerJson {
 public:
  TokenizerFile(const json& file, const std::string& source, size_t bytes)
      : TokenizerJson(source), file_(file), text_left_(kGrowth * bytes + kMoreText) {}

  Tokenizer read() {
    if (!file_.is_object()) refuse("is not a JSON object");
    read_decoder(member(file_, "decoder", "the file"));
    const json& model = member(file_, "model", "the file");
    if (model.is_object() && model.contains("type") && model["type"] != "BPE")
      refuse(fmt::format("has a model of type {}; BPE can be decoded", shown_value(model["type"])));
    const json& vocab = member(model, "vocab", "model");
    if (!vocab.is_object()) refuse("has a vocabulary that is not an object");
    static const json none = json::array();
    const json& added =
        file_.contains("added_tokens") && !file_["added_tokens"].is_null() ? file_["added_tokens"] : none;
    if (!added.is_array()) refuse("has added_tokens that are not an array");
    most_ = 4 * static_cast<int64_t>(vocab.size() + added.size()) + 65536;
    for (const auto& [token, number] : vocab.items()) {
      Tokenizer::Piece& piece = place(number, token);
      if (piece.known)
        refuse(fmt::format("gives the number {} to '{}' and to '{}'", shown_value(number),
                           shown_name(piece.token), shown_name(token)));
      piece = piece_of(token);
    }
    for (const json& token : added) read_added(token);
    return std::move(result_);
  }

 private:
  void read_decoder(const json& decoder) {
    const std::string type = decoder.is_object() ? text(decoder, "type") : shown_value(decoder);
    if (type == "ByteLevel") return;
    if (type != "Sequence") refuse_decoder(type);
    const json& steps = member(decoder, "decoders", "the decoder");
    if (!steps.is_array()) refuse("has a decoder whose steps are not an array");
    // One step alone stands for itself.
    if (steps.size() == 1 && steps[0].is_object() && text(steps[0], "type") == "ByteLevel") return;
    result_.byte_level_ = false;
    // Each kind in its order; what comes behind Fuse sees the whole text.
    int stage = 0;
    bool fused = false;
    for (const json& step : steps) {
      const std::string kind = step.is_object() ? text(step, "type") : shown_value(step);
      const int of = kind == "Replace"        ? 0
                     : kind == "ByteFallback" ? 1
                     : kind == "Fuse"         ? 2
                     : kind == "Strip"        ? 3
                                              : -1;
      if (of < stage || (of == 3 && !fused)) refuse_decoder("Sequence with " + kind);
      stage = of == 0 ? 0 : of + 1;
      if (of == 0) replacements_.push_back(replacement(step));
      if (of == 1) byte_fallback_ = true;
      fused |= of == 2;
      if (of == 3) read_strip(step);
    }
    if (!fused) refuse_decoder("Sequence without Fuse");
  }

  [[noreturn]] void refuse_decoder(const std::string& type) const {
    refuse(fmt::format(
        "has the decoder '{}'; ByteLevel can be read, and a Sequence of Replace, ByteFallback, Fuse, Strip "
        "in this order",
        shown_name(type)));
  }

  std::pair<std::string, std::string> replacement(const json& step) const {
    const json& pattern = member(step, "pattern", "Replace");
    if (!pattern.is_object() || !pattern.contains("String") || !pattern["String"].is_string())
      refuse(fmt::format("replaces by the pattern {}; strings can be replaced", shown_value(pattern)));
    auto string = pattern["String"].get<std::string>();
    if (string.empty()) refuse("replaces the empty string");
    if (string.size() > kMaxPattern)
      refuse(fmt::format("replaces '{}', {} bytes; at most {} are searched for", shown_name(string),
                         string.size(), kMaxPattern));
    if (replacements_.size() == kMaxReplacements)
      refuse(fmt::format("has more than {} Replace steps in its decoder; merge them", kMaxReplacements));
    return {std::move(string), text(step, "content")};
  }

  void read_strip(const json& step) {
    const json &start = member(step, "start", "Strip"), &stop = member(step, "stop", "Strip");
    if (!start.is_number_unsigned() || !stop.is_number_unsigned() || stop.get<uint64_t>() != 0 ||
        start.get<uint64_t>() > 1024)
      refuse(fmt::format(
          "strips by {}; a count of leading characters (start) and none at the end (stop 0) can be read",
          shown_value(step)));
    result_.strip_ = text(step, "content");
    if (result_.strip_.empty()) refuse("strips the empty string");
    result_.strip_count_ = start.get<int64_t>();
  }

  void read_added(const json& token) {
    if (!token.is_object())
      refuse(fmt::format("has an added token that is not an object: {}", shown_value(token)));
    const auto content = text(token, "content");
    Tokenizer::Piece& piece = place(member(token, "id", "an added token"), content);
    piece = piece_of(content);
    piece.special = flag(token, "special", false);
  }

  Tokenizer::Piece& place(const json& number, const std::string& token) {
    const bool whole = number.is_number_unsigned() && number.get<uint64_t>() < static_cast<uint64_t>(most_);
    if (!whole)
      refuse(fmt::format(
          "gives the number {} to the token '{}'; numbers are from 0 to little more than the count of "
          "tokens",
          shown_value(number), shown_name(token)));
    const auto i = number.get<size_t>();
    if (i >= result_.pieces_.size()) result_.pieces_.resize(i + 1);
    return result_.pieces_[i];
  }

  Tokenizer::Piece piece_of(const std::string& token) {
    Tokenizer::Piece piece{.token = token, .text = token, .known = true};
    if (result_.byte_level_) {
      piece.text = byte_level_text(token);
      return piece;
    }
    for (const auto& [pattern, with] : replacements_) replace(piece, pattern, with);
    text_left_ -= std::min(text_left_, piece.text.size());
    if (const std::optional<char> byte = byte_fallback_ ? fallback_byte(piece.text) : std::nullopt) {
      piece.text = *byte;
      piece.byte = true;
    }
    return piece;
  }

  // Short content in place of each of many matches, or long content of few, multiplies what a file holds.
  void replace(Tokenizer::Piece& piece, const std::string& pattern, const std::string& with) const {
    const size_t count = count_of(piece.text, pattern);
    if (count == 0) return;
    const size_t kept = piece.text.size() - count * pattern.size();
    const bool fits = kept <= text_left_ && (with.empty() || count <= (text_left_ - kept) / with.size());
    if (!fits)
      refuse(
          fmt::format("replaces '{}' in the token '{}' by {} bytes, {} times; the texts of all tokens would "
                      "pass {} times the size "
                      "of the file: shorten the 'content' of the Replace step",
                      shown_name(pattern), shown_name(piece.token), with.size(), count, kGrowth));
    piece.text = replaced(piece.text, pattern, with, kept + count * with.size());
  }

  const json& file_;
  size_t text_left_;  // bytes that the texts of the tokens to come may have together
  Tokenizer result_;
  std::vector<std::pair<std::string, std::string>> replacements_;
  bool byte_fallback_ = false;
  int64_t most_ = 0;
};

std::shared_ptr<const Tokenizer> Tokenizer::parse(std::string_view text, const std::string& source) {
  try {
    const json file = read_json(text);
    Tokenizer tokenizer = TokenizerFile(file, source, text.size()).read();
    tokenizer.source_ = source;
    try {
      tokenizer.encoder_ = TextEncoder::read(file, source);
    } catch (const IoError& e) {
      tokenizer.no_encoder_ = e.what();
    }
    return std::make_shared<const Tokenizer>(std::move(tokenizer));
  } catch (const JsonError& e) {
    throw IoError(fmt::format("the tokenizer '{}' {}; name a tokenizer.json of Hugging Face's tokenizers",
                              printable(source), e.what()));
  }
}

}  // namespace sherd
