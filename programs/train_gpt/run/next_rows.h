// Tokens and targets of multi-token prediction, from those of rows.
#pragma once

#include <cstdint>
#include <vector>

namespace train_gpt {

/// nn::NextTokens of rows in host memory, [rows * seq].
struct NextRows {
  std::vector<int32_t> tokens, targets;
};

/// Returns them for rows whose inputs and targets TokenWindows::fill() has written. The last place of a row or of an example
/// has no target, because the token that it would predict is not among the data. A target that is context to an example
/// is none here, either.
/// @param starts empty, or the first place of each place's example
/// @param lengths of each row, its places that are not padding
NextRows next_rows(const std::vector<int32_t>& inputs, const std::vector<int32_t>& targets,
                   const std::vector<int32_t>& starts, const std::vector<int32_t>& lengths, int64_t seq);

}  // namespace train_gpt
