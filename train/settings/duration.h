// Durations in flags: parsing and formatting.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sherd {

/// Forms that parse_duration() accepts, for messages.
inline constexpr std::string_view kDurationForms = "such as 3h50m, 90m, 7200s, 1d12h or 01:30:00";

/// Returns the seconds of "3h50m", "90m", "7200s", "1d", "1h0m30s" (units d, h, m, s, each at most once and
/// in this order; whole numbers), or of "HH:MM:SS" with two digits of minutes and seconds below 60. Nothing
/// for other texts, also for a number without a unit: batch systems disagree on whether it means minutes or
/// seconds.
[[nodiscard]] std::optional<double> parse_duration(std::string_view text);

/// Formats "3h50m0s", "1m30s", "12.5s": to a tenth of a second below a minute, to a second above.
std::string show_duration(double seconds);

}  // namespace sherd
