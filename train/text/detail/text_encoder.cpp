#include <sherd/train/text/detail/text_encoder.h>

#include <utility>

#include <fmt/format.h>

#include <sherd/base/error.h>

namespace sherd {

void require_growth(size_t from, size_t to) {
  constexpr size_t kTimes = 64, kMore = size_t{64} << 10;  // NFKC makes 11 times the bytes of a character
  if (to > kTimes * from + kMore)
    throw InvalidArgument(
        fmt::format("replaces {} bytes of text by {}; correct the 'content' of its Replace steps", from, to));
}

std::string TextEncoder::normalize(std::string_view text) const {
  std::string out(text);
  for (const Normalizer& step : normalizers_) {
    out = step(std::move(out));
    require_growth(text.size(), out.size());
  }
  return out;
}

std::vector<int32_t> TextEncoder::encode(std::string_view text, bool add_special) const {
  std::vector<Piece> pieces;
  for (const AddedTokens::Part& part : as_they_are_.split(text)) {
    const bool first = part.text.data() == text.data();
    if (part.token >= 0) {
      pieces.push_back({"", part.token, first});
      continue;
    }
    const std::string normal = normalize(part.text);
    for (const AddedTokens::Part& inner : normalized_.split(normal))
      pieces.push_back({inner.token < 0 ? std::string(inner.text) : "", inner.token,
                        first && inner.text.data() == normal.data()});
  }
  for (const PreTokenizer& step : pre_tokenizers_) {
    std::vector<Piece> words;
    for (Piece& piece : pieces) {
      if (piece.token >= 0)
        words.push_back(std::move(piece));
      else
        step(std::move(piece), words);
    }
    pieces = std::move(words);
  }
  std::vector<int32_t> tokens, all;
  for (const Piece& piece : pieces) {
    if (piece.token >= 0)
      tokens.push_back(piece.token);
    else
      model_.encode(piece.text, tokens);
  }
  for (const int32_t token : template_) {
    if (token < 0)
      all.insert(all.end(), tokens.begin(), tokens.end());
    else if (add_special)
      all.push_back(token);
  }
  return all;
}

}  // namespace sherd
