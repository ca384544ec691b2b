// Reduction operators over the values of several ranks.
#pragma once

namespace sherd {

/// max and min give NaN when any value is NaN.
enum class ReduceOp { sum, max, min };

}  // namespace sherd
