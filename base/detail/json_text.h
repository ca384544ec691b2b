// JSON of other programs, with one set of limits for every file, and text from files in messages. Private to
// checkpoint/, train/ and the programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <sherd/base/error.h>

namespace sherd {

/// Returns what is wrong, without the library's prefix "[json.exception.NAME.ID] ".
std::string json_reason(const nlohmann::json::exception& e);

/// The text in double quotes, as printable() and JSON escape it; cut when it is long.
std::string shown(std::string_view text);
/// The value as JSON on one line, escaped as printable() does, of which about `most` bytes are written; costs no more
/// time, memory or stack than that, whatever the value is.
std::string shown_value(const nlohmann::json& value, size_t most = 80);
bool is_utf8(std::string_view text);

/// Why a text is refused, as the end of a sentence: "is not valid JSON: ...". Who reads a file names it.
class JsonError : public Error {
 public:
  using Error::Error;
};

inline constexpr int kJsonDepth = 64;                   // of anything known: 5
inline constexpr size_t kJsonValues = size_t{8} << 20;  // the largest tokenizers have some 2 million

/// Reads JSON text. Refuses zero bytes (the parser takes one for the end), objects and arrays nested more than
/// kJsonDepth deep, a key that an object has twice (the parser would keep the last) with the path of the object, and more than
/// `most` values, which bounds the memory that small values multiply. Neither recursion nor memory depends on a text's depth.
/// @throws JsonError
nlohmann::json read_json(std::string_view text, size_t most = kJsonValues);
/// The same; null for a text that is refused.
nlohmann::json read_json_or_null(std::string_view text);
/// The same for checkpoints. @throws CorruptCheckpoint: `what`, then the reason.
nlohmann::json parse_json(std::string_view text, std::string_view what);

/// An array of sizes or offsets: integers in [0, 2^63). @throws CorruptCheckpoint, also when it is missing.
std::vector<int64_t> whole_numbers(const nlohmann::json& object, const char* key);

}  // namespace sherd
