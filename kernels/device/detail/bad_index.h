// Messages for indices outside their range. Private to kernels/.
#pragma once

#include <cstdint>
#include <string>

namespace sherd {

/// Returns "<op>: <what> 70 at position 3 lies outside [0, 64)", with advice for tokens.
std::string bad_index(const char* op, const char* what, int32_t index, int64_t position, int64_t bound);

}  // namespace sherd
