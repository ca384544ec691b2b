// Text from the model.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// Returns the tokens that text is generated from: the bytes of --prompt; with --model those of --prompt-tokens, or of --prompt as its
/// tokenizer encodes it (in the process of rank 0, empty in others). @throws as parse_prompt_tokens() and with_model_files().
std::vector<int32_t> prompt_tokens(const TrainConfig& config);

/// Prints tokens as they are made: as bytes without --model; with it as text by --tokenizer or the tokenizer.json of --model's folder, else as
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
