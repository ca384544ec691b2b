#include <sherd/train/text/tokenizer.h>

#include <utility>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/base/printable.h>
#include <sherd/checkpoint/files/file_system.h>
#include <sherd/train/text/detail/text_encoder.h>
#include <sherd/train/text/utf8.h>

namespace sherd {
namespace {

constexpr int64_t kLargestFile = int64_t{1} << 28;  // those of the largest vocabularies have some 30 MB

}  // namespace

std::shared_ptr<const Tokenizer> Tokenizer::load(const std::filesystem::path& path) {
  return parse(read_whole(FileSystem::posix(), path, kLargestFile), path.string());
}

int64_t Tokenizer::find(std::string_view token) const {
  for (size_t i = 0; i < pieces_.size(); ++i)
    if (pieces_[i].known && pieces_[i].token == token) return static_cast<int64_t>(i);
  return -1;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special) const {
  if (!encoder_) throw NotSupported(no_encoder_);
  for (size_t at = 0; at < text.size();) {
    const size_t size = utf8_character(text.substr(at));
    if (size == 0)
      throw InvalidArgument(fmt::format("text to encode: byte {}, 0x{:02x}, is not UTF-8; convert the text",
                                        at, static_cast<uint8_t>(text[at])));
    at += size;
  }
  try {
    return encoder_->encode(text, add_special);
  } catch (const InvalidArgument& e) {
    throw InvalidArgument(fmt::format("the tokenizer '{}' {}", printable(source_), e.what()));
  }
}

std::string Tokenizer::decode(const std::vector<int32_t>& tokens, bool skip_special) const {
  // The stream ends with this call.
  TextStream stream(std::shared_ptr<const Tokenizer>(this, [](const Tokenizer*) {}), skip_special);
  std::string text;
  for (const int32_t token : tokens) text += stream.add(token);
  return text + stream.finish();
}

TextStream::TextStream(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

std::string TextStream::add(int32_t token) {
  if (token < 0) throw InvalidArgument(fmt::format("token {} has no text: it is negative", token));
  const auto i = static_cast<size_t>(token);
  const bool known = i < tokenizer_->pieces_.size() && tokenizer_->pieces_[i].known;
  if (known && skip_special_ && tokenizer_->pieces_[i].special) return "";
  const std::string_view piece =
      known ? std::string_view(tokenizer_->pieces_[i].text) : kReplacementCharacter;
  if (tokenizer_->byte_level_) {
    held_ += piece;
    std::string text;
    held_ = std::string(take_characters(held_, text));
    return text;
  }
  if (known && tokenizer_->pieces_[i].byte) {
    held_ += piece;  // a run of bytes is characters as a whole or not at all
    return "";
  }
  std::string text = end_of_bytes();
  text += piece;
  return stripped(std::move(text));
}

std::string TextStream::finish() {
  std::string text;
  if (tokenizer_->byte_level_) {
    if (!held_.empty()) text = kReplacementCharacter;
    held_.clear();
  } else {
    text = stripped(end_of_bytes());
  }
  stripped_ = 0;
  return text;
}

std::string TextStream::end_of_bytes() {
  std::string text;
  if (!take_characters(held_, text).empty() || text != held_) {
    text.clear();
    for (size_t i = 0; i < held_.size(); ++i) text += kReplacementCharacter;
  }
  held_.clear();
  return text;
}

std::string TextStream::stripped(std::string text) {
  while (stripped_ >= 0 && stripped_ < tokenizer_->strip_count_ && text.starts_with(tokenizer_->strip_)) {
    text.erase(0, tokenizer_->strip_.size());
    ++stripped_;
  }
  if (!text.empty()) stripped_ = -1;
  return text;
}

}  // namespace sherd
