#include <sherd/base/detail/json_text.h>

#include <limits>
#include <string>
#include <unordered_set>
#include <vector>

#include <fmt/format.h>

#include <sherd/base/detail/foreign_content.h>
#include <sherd/base/printable.h>

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

// Checks a text as it is parsed, keeping only the keys of the objects that are open. (The parser's own callback
// takes quadratic time: behind each object it visits all earlier members of the container.)
class Check : public json::json_sax_t {
 public:
  explicit Check(size_t most) : most_(most) {}

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(json::number_integer_t) override { return value(); }
  bool number_unsigned(json::number_unsigned_t) override { return value(); }
  bool number_float(json::number_float_t, const json::string_t&) override { return value(); }
  bool string(json::string_t&) override { return value(); }
  bool binary(json::binary_t&) override { return value(); }
  bool start_object(size_t) override { return open(true); }
  bool start_array(size_t) override { return open(false); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(json::string_t& key) override {
    Level& level = open_.back();
    if (!level.keys.insert(key).second)
      throw JsonError(fmt::format("has an object {}in which the key {} appears twice", path(), shown(key)));
    level.key = key;
    return true;
  }
  bool parse_error(size_t, const std::string&, const json::exception& e) override {
    throw JsonError(fmt::format("is not valid JSON: {}", printable(json_reason(e))));
  }

 private:
  struct Level {
    bool object;
    std::unordered_set<std::string> keys = {};
    std::string key = {};  // the newest
    size_t values = 0;
  };

  bool value() {
    if (++values_ > most_) throw JsonError(fmt::format("has more than {} values", most_));
    if (!open_.empty()) ++open_.back().values;
    return true;
  }
  bool open(bool object) {
    if (std::ssize(open_) == kJsonDepth)
      throw JsonError(fmt::format("is nested more than {} deep", kJsonDepth));
    value();
    open_.push_back({.object = object});
    return true;
  }
  // Of the innermost object: "groups[0].ranks"; empty for the outermost.
  std::string path() const {
    std::string path;
    for (size_t i = 0; i + 1 < open_.size(); ++i)
      path += !open_[i].object ? fmt::format("[{}]", open_[i].values - 1)
                               : (path.empty() ? "" : ".") + open_[i].key;
    return path.empty() ? "" : shown(path) + " ";
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  size_t most_, values_ = 0;
  std::vector<Level> open_;
};

}  // namespace

std::string json_reason(const json::exception& e) {
  const std::string what = e.what();
  const size_t prefix = what.find("] ");
  return prefix == what.npos ? what : what.substr(prefix + 2);
}

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
  if (const std::string what = foreign_content(text); !what.empty()) throw JsonError(what);
  if (text.find('\0') != text.npos) throw JsonError("holds a zero byte");
  Check check(most);
  json::sax_parse(text, &check);
  return json::parse(text);
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

std::vector<int64_t> whole_numbers(const json& object, const char* key) {
  constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const auto found = object.find(key);
  if (found == object.end()) throw CorruptCheckpoint(fmt::format("\"{}\" is missing", key));
  if (!found->is_array()) throw CorruptCheckpoint(fmt::format("\"{}\" is not an array", key));
  std::vector<int64_t> numbers;
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
