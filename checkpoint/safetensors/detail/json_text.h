// JSON that others wrote, and text from files in messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include <sherd/kernels/device/shape.h>

namespace sherd {

/// Safe to print: quoted, escaped, and cut when absurdly long.
std::string shown(std::string_view text);
bool is_utf8(std::string_view text);

/// Keys that appear twice in an object are an error (plain parsing would keep the last).
/// @throws CorruptCheckpoint saying that `what` is not valid JSON.
nlohmann::json parse_json(std::string_view text, std::string_view what);

/// An array of sizes or offsets: integers in [0, 2^63). @throws CorruptCheckpoint, also when it is missing.
Shape whole_numbers(const nlohmann::json& object, const char* key);

}  // namespace sherd
