// Comparison of checkpoints by the tool.
#pragma once

#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>

#include "programs/runs/program.h"

namespace sherd::test {

/// Returns whether weights, state and counts of two checkpoints are the same in bits.
inline bool same_checkpoint(const std::filesystem::path& a, const std::filesystem::path& b) {
  return std::system(fmt::format("{} ckpt diff '{}' '{}' >'{}' 2>&1", SHERD_TOOL, a.string(), b.string(),
                                 scratch("diff").string())
                         .c_str()) == 0;
}

}  // namespace sherd::test
