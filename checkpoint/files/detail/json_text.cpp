#include <sherd/checkpoint/files/detail/json_text.h>

#include <limits>
#include <string>
#include <unordered_set>
#include <vector>

#include <fmt/format.h>

#include <sherd/kernels/device/printable.h>

namespace sherd {
namespace {

using nlohmann::json;

std::string in_json(std::string_view text, size_t most) {
  const std::string_view some = text.substr(0, most);
  const std::string escaped = json(some).dump(-1, ' ', false, json::error_handler_t::replace);
  return printable(escaped, std::string::npos) + (text.size() > most ? "..." : "");
}

// Stops behind `most` bytes. Each level writes a byte before it opens the next, so `most` bounds the recursion, too.
void write(const json& value, size_t most, std::string& out) {
  if (out.size() > most) return;
  if (value.is_string()) {
    out += in_json(value.get_ref<const std::string&>(), most);
  } else if (value.is_structured()) {
    const bool object = value.is_object();
    out += object ? '{' : '[';
    bool first = true;
    for (auto item = value.begin(); item != value.end() && out.size() <= most; ++item, first = false) {
      if (!first) out += ',';
      if (object) out += in_json(item.key(), most) + ':';
      write(*item, most, out);
    }
    out += object ? '}' : ']';
  } else {
    out += value.dump();
  }
}

}  // namespace

std::string shown(std::string_view text) { return in_json(text, kPrintedBytes); }

std::string shown_value(const json& value, size_t most) {
  std::string out;
  write(value, most, out);
  return printable(out, most);
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_character(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

json read_json(std::string_view text, size_t most) {
  if (text.find('\0') != text.npos) throw JsonError("holds a zero byte");
  std::vector<std::unordered_set<std::string>> open_objects;
  size_t values = 0;
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    using Event = json::parse_event_t;
    const bool opens = event == Event::object_start || event == Event::array_start;
    if (opens && depth >= kJsonDepth) throw JsonError(fmt::format("is nested more than {} deep", kJsonDepth));
    if ((opens || event == Event::value) && ++values > most)
      throw JsonError(fmt::format("has more than {} values", most));
    if (event == Event::object_start) open_objects.emplace_back();
    if (event == Event::object_end) open_objects.pop_back();
    if (event == Event::key && !open_objects.back().insert(parsed.get_ref<const std::string&>()).second)
      throw JsonError(fmt::format("has an object in which the key {} appears twice", shown_value(parsed)));
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::exception& e) {
    throw JsonError(fmt::format("is not valid JSON: {}", printable(e.what())));
  }
}

json read_json_or_null(std::string_view text) {
  try {
    return read_json(text);
  } catch (const JsonError&) {
    return nullptr;
  }
}

json parse_json(std::string_view text, std::string_view what) {
  try {
    return read_json(text);
  } catch (const JsonError& e) {
    throw CorruptCheckpoint(fmt::format("{} {}", what, e.what()));
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
