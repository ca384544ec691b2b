// Text from a --model.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "config.h"

namespace train_gpt {

/// Returns "1,15,7" as numbers. @throws sherd::InvalidArgument naming --prompt-tokens for parts that are not
/// numbers, or outside of the vocabulary.
std::vector<int32_t> parse_prompt_tokens(std::string_view list, int64_t vocab);

/// Prints tokens as they are made: as text by --tokenizer or the tokenizer.json of --model's folder, else as
/// the tokens' ids. @throws sherd::IoError for a file that cannot be used.
class ShownTokens {
 public:
  ShownTokens(const TrainConfig& config, std::function<void(const std::string&)> print);
  void add(int32_t token);
  /// Prints the text that is still held back.
  void finish();

 private:
  std::function<void(const std::string&)> print_;
  std::function<std::string(int32_t)> text_;
  std::function<std::string()> rest_;
};

}  // namespace train_gpt
