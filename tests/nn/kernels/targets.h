// The targets of the tests of losses.
#pragma once

#include <cstdint>
#include <vector>

#include <sherd/nn/kernels/loss/loss.h>

namespace sherd::test {

/// A token of the vocabulary for each row.
inline std::vector<int32_t> targets(int64_t rows, int64_t vocab) {
  std::vector<int32_t> t;
  for (int64_t i = 0; i < rows; ++i) t.push_back(static_cast<int32_t>((i * 7 + 1) % vocab));
  return t;
}

/// The same; rows 0, 3, 6, ... are not learned.
inline std::vector<int32_t> masked_targets(int64_t rows, int64_t vocab) {
  std::vector<int32_t> t = targets(rows, vocab);
  for (size_t i = 0; i < t.size(); i += 3) t[i] = kIgnoredTarget;
  return t;
}

}  // namespace sherd::test
