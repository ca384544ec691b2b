#include <sherd/train/text/detail/tokenizer_json.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <sherd/base/detail/json_text.h>
#include <sherd/base/error.h>
#include <sherd/base/printable.h>

namespace sherd {

using nlohmann::json;

void TokenizerJson::refuse(const std::string& why) const {
  throw IoError(fmt::format("the tokenizer '{}' {}", printable(source_), why));
}

const json& TokenizerJson::member(const json& object, const char* key, const char* what) const {
  if (!object.is_object() || !object.contains(key)) refuse(fmt::format("lacks '{}' in {}", key, what));
  return object[key];
}

std::string TokenizerJson::text(const json& object, const char* key) const {
  const json& value = member(object, key, "one of its entries");
  if (!value.is_string()) refuse(fmt::format("has a '{}' that is not a string: {}", key, shown_value(value)));
  return value.get<std::string>();
}

bool TokenizerJson::flag(const json& object, const char* key, bool otherwise) const {
  if (!object.contains(key) || object[key].is_null()) return otherwise;
  if (!object[key].is_boolean())
    refuse(fmt::format("has a '{}' that is neither true nor false: {}", key, shown_value(object)));
  return object[key].get<bool>();
}

std::string shown_name(std::string_view text) { return printable(text, 80); }

}  // namespace sherd
