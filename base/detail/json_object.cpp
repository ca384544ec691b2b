#include <sherd/base/detail/json_object.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <sherd/base/detail/json_text.h>

namespace sherd {
namespace {

using nlohmann::json;

constexpr size_t kMostErrors = 20;  // of a message

const json kNull;
const json kEmpty = json::object();

std::string remedy_ending(const std::string& remedy) { return remedy.empty() ? "" : "; " + remedy; }

json parse_any(std::string_view text, const std::string& source, const std::string& remedy) {
  try {
    return read_json(text);
  } catch (const JsonError& e) {
    throw InvalidArgument(fmt::format("'{}': it {}{}", source, e.what(), remedy_ending(remedy)));
  }
}

bool is_integer(const json& value, int64_t low, int64_t high) {
  // Unsigned numbers above the signed range are too large in any case.
  return value.is_number_integer() &&
         (!value.is_number_unsigned() || std::in_range<int64_t>(value.get<uint64_t>())) &&
         value.get<int64_t>() >= low && value.get<int64_t>() <= high;
}

bool is_number(const json& value, double low, double high) {
  return value.is_number() && value.get<double>() >= low && value.get<double>() <= high;
}

bool is_list(const json& value, size_t least) { return value.is_array() && value.size() >= least; }

std::string needed_list(size_t least) {
  return fmt::format("a list{} is needed", least > 0 ? " that is not empty" : "");
}

template <class T>
std::string needed_range(const char* what, T low, T high) {
  return fmt::format("{} from {} to {} is needed", what, low, high);
}

}  // namespace

/// What all objects of a file share.
struct JsonObject::File {
  std::string source, remedy;
  json whole;
  std::set<std::string> refused = {};    // paths
  std::vector<std::string> errors = {};  // parts of the message
};

std::string read_text(const std::string& path, const std::string& remedy) {
  std::error_code ignored;
  std::string reason = "is a folder";
  if (!std::filesystem::is_directory(path, ignored)) {
    errno = 0;
    std::ifstream in(path, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    if (in.is_open() && !text.bad()) return text.str();
    reason = fmt::format("cannot be read ({})", errno != 0 ? std::strerror(errno) : "input/output error");
  }
  throw IoError(fmt::format("'{}': {}{}", path, reason, remedy_ending(remedy)));
}

json parse_object(std::string_view text, const std::string& source, const std::string& remedy) {
  json value = parse_any(text, source, remedy);
  if (value.is_object()) return value;
  throw InvalidArgument(fmt::format("'{}': it holds {} instead of an object{}", source, shown_value(value),
                                    remedy_ending(remedy)));
}

JsonObject JsonObject::parse(std::string_view text, const std::string& source, const std::string& remedy) {
  const auto file = std::make_shared<File>(File{source, remedy, parse_object(text, source, remedy)});
  return JsonObject(file, file->whole, "");
}

JsonObject JsonObject::parse_list(std::string_view text, const std::string& source,
                                  const std::string& remedy) {
  const auto file =
      std::make_shared<File>(File{source, remedy, json::object({{"", parse_any(text, source, remedy)}})});
  return JsonObject(file, file->whole, "");
}

JsonObject::JsonObject(std::shared_ptr<File> file, const json& value, std::string place)
    : file_(std::move(file)), value_(value.is_object() ? &value : &kEmpty), place_(std::move(place)) {}

const json& JsonObject::raw(const char* key) const {
  requested_.insert(key);
  const auto found = value_->find(key);
  return found == value_->end() ? kNull : *found;
}

bool JsonObject::contains(const char* key) const { return value_->contains(key); }

bool JsonObject::has(const char* key) const { return !raw(key).is_null(); }

int64_t JsonObject::integer(const char* key, std::optional<int64_t> otherwise, int64_t low, int64_t high) {
  const json& value = raw(key);
  if (value.is_null() && otherwise) return *otherwise;
  if (is_integer(value, low, high)) return value.get<int64_t>();
  refuse(key, needed_range("an integer", low, high));
  return otherwise.value_or(low);
}

double JsonObject::number(const char* key, std::optional<double> otherwise, double low, double high) {
  const json& value = raw(key);
  if (value.is_null() && otherwise) return *otherwise;
  if (is_number(value, low, high)) return value.get<double>();
  refuse(key, needed_range("a number", low, high));
  return otherwise.value_or(low);
}

bool JsonObject::flag(const char* key, bool otherwise) {
  const json& value = raw(key);
  if (value.is_boolean()) return value.get<bool>();
  if (!value.is_null()) refuse(key, "true or false is needed");
  return otherwise;
}

std::string JsonObject::text(const char* key, std::optional<std::string> otherwise) {
  const json& value = raw(key);
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_null() || !otherwise) refuse(key, "a string is needed");
  return otherwise.value_or("");
}

std::string JsonObject::name(const char* key) {
  std::string value = text(key, std::nullopt);
  if (value.empty() && !refused(key)) refuse(key, "a string that is not empty is needed");
  return value;
}

template <class T>
std::vector<T> JsonObject::all(const char* key, std::optional<size_t> least,
                               const std::function<bool(const json&)>& good, const std::string& needed) {
  const json& list = raw(key);
  if (list.is_null() && !least) return {};
  if (!is_list(list, least.value_or(0))) return refuse(key, needed_list(least.value_or(0))), std::vector<T>();
  const auto bad = std::find_if_not(list.begin(), list.end(), good);
  if (bad == list.end()) return list.get<std::vector<T>>();
  refuse_item(key, static_cast<size_t>(bad - list.begin()), needed);
  return {};
}

std::vector<std::string> JsonObject::texts(const char* key) {
  return all<std::string>(
      key, {}, [](const json& item) { return item.is_string(); }, "a string is needed");
}

std::vector<double> JsonObject::numbers(const char* key, double low, double high) {
  return all<double>(
      key, {}, [&](const json& item) { return is_number(item, low, high); },
      needed_range("a number", low, high));
}

std::vector<int64_t> JsonObject::integers(const char* key, int64_t low, int64_t high,
                                          std::optional<size_t> least) {
  return all<int64_t>(
      key, least, [&](const json& item) { return is_integer(item, low, high); },
      needed_range("an integer", low, high));
}

void JsonObject::each(const char* key, size_t least, const std::function<void(JsonObject&)>& take) {
  const json& list = raw(key);
  if (!is_list(list, least)) return refuse(key, needed_list(least));
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string item = fmt::format("{}[{}]", key, i);
    JsonObject object(file_, list[i], path(item));
    if (list[i].is_object())
      take(object);
    else
      add(item, "", list[i], "an object is needed");
  }
}

JsonObject JsonObject::object(const char* key) {
  if (has(key) && !raw(key).is_object()) refuse(key, "an object is needed");
  return JsonObject(file_, raw(key), path(key));
}

std::vector<std::string> JsonObject::keys() const {
  std::vector<std::string> all;
  for (const auto& [key, value] : value_->items()) all.push_back(key);
  return all;
}

std::string JsonObject::path(std::string_view key) const {
  return fmt::format("{}{}{}", place_, place_.empty() || key.empty() ? "" : ".", key);
}

void JsonObject::add(std::string_view key, const std::string& item, const json& value,
                     const std::string& why) {
  std::string place = path(key);
  std::string error = fmt::format("{} is {}: {}", place.empty() && item.empty() ? "it" : shown(place + item),
                                  &value == &kNull ? "missing" : shown_value(value), why);
  if (std::ranges::find(file_->errors, error) != file_->errors.end()) return;
  file_->errors.push_back(std::move(error));
  file_->refused.insert(std::move(place));
  if (file_->errors.size() < kMostErrors) return;
  file_->errors.emplace_back("there may be more");
  require_none();
}

void JsonObject::refuse(const char* key, const std::string& why) { add(key, "", raw(key), why); }

void JsonObject::refuse_item(const char* key, size_t item, const std::string& why) {
  add(key, fmt::format("[{}]", item), raw(key)[item], why);
}

void JsonObject::refuse_others() {
  for (const auto& [key, value] : value_->items())
    if (!requested_.contains(key))
      add(key, "", value, fmt::format("the key is unknown; the keys are {}", fmt::join(requested_, ", ")));
}

bool JsonObject::refused(const char* key) const { return file_->refused.contains(path(key)); }

void JsonObject::require_none() const {
  if (!file_->errors.empty())
    throw InvalidArgument(fmt::format("'{}': {}{}", file_->source, fmt::join(file_->errors, "; "),
                                      remedy_ending(file_->remedy)));
}

}  // namespace sherd
