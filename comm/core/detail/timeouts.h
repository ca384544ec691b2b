// Timeouts that can be added to a time point. Private to comm/.
#pragma once

#include <algorithm>
#include <chrono>

namespace sherd::comm {

/// The timeout, at most a year: a longer one would overflow the clock.
inline std::chrono::milliseconds bounded(std::chrono::milliseconds timeout) {
  return std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365));
}

/// A store that does not answer what watches the ranks for so long is lost, whatever the timeout of calls: nothing else is
/// checked meanwhile.
inline constexpr std::chrono::seconds kStoreAnswers{10};

inline std::chrono::steady_clock::time_point deadline_after(std::chrono::milliseconds timeout) {
  return std::chrono::steady_clock::now() + bounded(timeout);
}

}  // namespace sherd::comm
