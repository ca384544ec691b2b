#include <sherd/nn/hf/detail/config_object.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/detail/json_text.h>
#include <sherd/base/error.h>

namespace sherd::hf {
namespace {

using nlohmann::json;

const json kNull;
const json kEmpty = json::object();

}  // namespace

json parse_object(std::string_view text, const std::string& source) {
  try {
    json value = read_json(text);
    if (value.is_object()) return value;
    throw JsonError(fmt::format("holds {} instead of an object", shown_value(value)));
  } catch (const JsonError& e) {
    throw InvalidArgument(fmt::format("'{}': it {}", source, e.what()));
  }
}

ConfigObject::ConfigObject(std::string source, const json& object)
    : source_(std::move(source)), object_(&object), problems_(std::make_shared<std::vector<std::string>>()) {}

ConfigObject::ConfigObject(const ConfigObject& outer, const char* key)
    : source_(outer.source_),
      prefix_(outer.prefix_ + key + "."),
      object_(&outer.raw(key)),
      problems_(outer.problems_) {
  if (!object_->is_object()) object_ = &kEmpty;
}

const json& ConfigObject::raw(const char* key) const {
  const auto found = object_->find(key);
  return found == object_->end() ? kNull : *found;
}

bool ConfigObject::has(const char* key) const { return !raw(key).is_null(); }

int64_t ConfigObject::integer(const char* key, std::optional<int64_t> otherwise, int64_t low, int64_t high) {
  const json& value = raw(key);
  if (value.is_null() && otherwise) return *otherwise;
  // Unsigned numbers above the signed range are too large in any case.
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || std::in_range<int64_t>(value.get<uint64_t>())) &&
                    value.get<int64_t>() >= low && value.get<int64_t>() <= high;
  if (fits) return value.get<int64_t>();
  refuse(key, fmt::format("an integer from {} to {} is needed", low, high));
  return otherwise.value_or(low);
}

double ConfigObject::number(const char* key, std::optional<double> otherwise, double low, double high) {
  const json& value = raw(key);
  if (value.is_null() && otherwise) return *otherwise;
  if (value.is_number() && value.get<double>() >= low && value.get<double>() <= high)
    return value.get<double>();
  refuse(key, fmt::format("a number from {} to {} is needed", low, high));
  return otherwise.value_or(low);
}

bool ConfigObject::flag(const char* key, bool otherwise) {
  const json& value = raw(key);
  if (value.is_boolean()) return value.get<bool>();
  if (!value.is_null()) refuse(key, "true or false is needed");
  return otherwise;
}

std::string ConfigObject::text(const char* key, std::optional<std::string> otherwise) {
  const json& value = raw(key);
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_null() || !otherwise) refuse(key, "a string is needed");
  return otherwise.value_or("");
}

template <class T>
std::vector<T> ConfigObject::all(const char* key, const std::function<bool(const json&)>& good,
                                 const std::string& needed) {
  std::vector<T> values;
  const json& value = raw(key);
  if (value.is_null()) return values;
  if (value.is_array() && std::all_of(value.begin(), value.end(), good)) return value.get<std::vector<T>>();
  refuse(key, needed);
  return values;
}

std::vector<std::string> ConfigObject::texts(const char* key) {
  return all<std::string>(
      key, [](const json& item) { return item.is_string(); }, "an array of strings is needed");
}

std::vector<double> ConfigObject::numbers(const char* key, double low, double high) {
  return all<double>(
      key,
      [&](const json& item) {
        return item.is_number() && item.get<double>() >= low && item.get<double>() <= high;
      },
      fmt::format("an array of numbers from {} to {} is needed", low, high));
}

ConfigObject ConfigObject::object(const char* key) {
  if (has(key) && !raw(key).is_object()) refuse(key, "an object is needed");
  return ConfigObject(*this, key);
}

void ConfigObject::refuse(const char* key, const std::string& why) {
  const json& value = raw(key);
  problems_->push_back(
      fmt::format("\"{}{}\" is {}: {}", prefix_, key, value.is_null() ? "missing" : shown_value(value), why));
}

void ConfigObject::require_none() const {
  if (!problems_->empty())
    throw InvalidArgument(fmt::format("'{}': {}", source_, fmt::join(*problems_, "; ")));
}

}  // namespace sherd::hf
