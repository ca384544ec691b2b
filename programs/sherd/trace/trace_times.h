// Times of a step by operation, of traces beside each other.
#pragma once

#include <string>
#include <vector>

namespace sherd::tools {

/// Milliseconds of a step of the first rank in each trace, by stream and operation: those of `sherd plan --trace` and of
/// `train_gpt --trace`, in the order of the largest. Operations below a thousandth of the sum are one line.
/// @throws IoError for what cannot be read; InvalidArgument for a file that is not a Chrome trace.
std::string times_table(const std::vector<std::string>& paths);

}  // namespace sherd::tools
