// Numbers that reports may have to show.
#pragma once

#include <limits>

namespace sherd {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace sherd
