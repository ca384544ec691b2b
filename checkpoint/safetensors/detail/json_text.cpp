#include <sherd/checkpoint/safetensors/detail/json_text.h>

#include <limits>
#include <set>
#include <vector>

#include <fmt/format.h>

#include <sherd/kernels/device/error.h>

namespace sherd {

using nlohmann::json;

std::string shown(std::string_view text) {
  constexpr size_t kShown = 300;
  const std::string escaped =
      json(text.substr(0, kShown)).dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() <= kShown ? escaped : escaped + "...";
}

bool is_utf8(std::string_view text) {
  try {
    json(text).dump();
    return true;
  } catch (const json::type_error&) {
    return false;
  }
}

json parse_json(std::string_view text, std::string_view what) {
  // The parser takes a zero byte for the end of its input and would not see what follows.
  if (text.find('\0') != text.npos) throw CorruptCheckpoint(fmt::format("{} holds a zero byte", what));
  constexpr int kMaxDepth = 64;  // of anything known: 4
  std::vector<std::set<std::string>> open_objects;
  const auto check_keys = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) throw CorruptCheckpoint(fmt::format("{} is nested too deeply", what));
    if (event == json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == json::parse_event_t::object_end) open_objects.pop_back();
    if (event == json::parse_event_t::key &&
        !open_objects.back().insert(parsed.get_ref<const std::string&>()).second) {
      throw CorruptCheckpoint(
          fmt::format("{}: this key appears twice", shown(parsed.get_ref<const std::string&>())));
    }
    return true;
  };
  try {
    return json::parse(text, check_keys);
  } catch (const json::exception& e) {
    throw CorruptCheckpoint(fmt::format("{} is not valid JSON: {}", what, shown(e.what())));
  }
}

Shape whole_numbers(const json& object, const char* key) {
  constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const auto found = object.find(key);
  if (found == object.end()) throw CorruptCheckpoint(fmt::format("\"{}\" is missing", key));
  if (!found->is_array()) throw CorruptCheckpoint(fmt::format("\"{}\" is not an array", key));
  Shape numbers;
  for (const json& value : *found) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > kMax) {
      throw CorruptCheckpoint(
          fmt::format("\"{}\" holds something other than integers from 0 to 2^63 - 1", key));
    }
    numbers.push_back(value.get<int64_t>());
  }
  return numbers;
}

}  // namespace sherd
