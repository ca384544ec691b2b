// Values of config.json that several families read, with the bounds of all. Private to nn/hf.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <sherd/base/detail/json_object.h>

namespace sherd::hf {

// Sizes beyond any model's: what is larger is a mistake. Columns are multiplied with each other and with
// tokens of a batch, so they are bounded more narrowly.
inline constexpr int64_t kMaxSize = int64_t{1} << 30;
inline constexpr int64_t kMaxColumns = int64_t{1} << 20;
inline constexpr int64_t kMaxLayers = 10'000;
inline constexpr int64_t kMaxExperts = 65'536;
inline constexpr double kHuge = std::numeric_limits<float>::max();
inline constexpr double kTiny = std::numeric_limits<float>::min();

inline int64_t size(JsonObject& c, const char* key, std::optional<int64_t> otherwise = std::nullopt) {
  return c.integer(key, otherwise, 1, kMaxSize);
}

// A width of activations.
inline int64_t columns(JsonObject& c, const char* key, std::optional<int64_t> otherwise = std::nullopt) {
  return c.integer(key, otherwise, 1, kMaxColumns);
}

// Returns the first of several spellings that exists, or the first of all if none does.
inline const char* spelling(const JsonObject& c, std::initializer_list<const char*> keys) {
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const char* key) { return c.has(key); });
  return found == keys.end() ? *keys.begin() : *found;
}

// Returns whether a key is null. Some classes read null as "none" or false, not as the default.
inline bool is_null(const JsonObject& c, const char* key) { return c.contains(key) && !c.has(key); }

// Refuses a setting that must be `wanted` because nothing else is computed.
inline void require_flag(JsonObject& c, const char* key, bool otherwise, bool wanted, const char* why) {
  if (c.flag(key, otherwise) != wanted) c.refuse(key, why);
}

inline void note_dropout(JsonObject& c, const char* key, double otherwise, std::vector<std::string>& notes) {
  if (const double p = c.number(key, otherwise, 0, 1); p > 0)
    notes.push_back(fmt::format("\"{}\" is {}: training here is without dropout", key, p));
}

}  // namespace sherd::hf
