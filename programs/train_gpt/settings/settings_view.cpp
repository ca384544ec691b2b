// Build step: prints settings_values.h, the C++ struct of the settings in settings.proto.
#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <google/protobuf/descriptor.h>

#include "settings.pb.h"

namespace {

using google::protobuf::FieldDescriptor;
using train_gpt::proto::Setting;

/// The library's headers of types in settings.proto.
constexpr const char* kHeaders[] = {
    "comm/launch_options",      "fsdp/strategy",       "kernels/device/dtype",    "kernels/rest/rest",
    "optim/muon/muon_options",  "optim/schedule",      "train/data/token_format", "train/data/token_windows",
    "train/saving/save_folder", "train/saving/saving", "train/settings/fields"};

const Setting& setting_of(const FieldDescriptor& field) {
  return field.options().GetExtension(train_gpt::proto::setting);
}

/// The words that are enumerators. The word auto of a setting that may be unset is not.
std::vector<std::string> words_of(const Setting& setting) {
  std::vector<std::string> words;
  std::istringstream list(setting.words());
  for (std::string word; std::getline(list, word, '|');)
    if (word != "auto" || !setting.may_be_unset()) words.push_back(word);
  return words;
}

/// The enumerator of a word: what is a keyword, or no identifier, has another name.
std::string enumerator_of(const Setting& setting, std::string word) {
  std::ranges::replace(word, ':', '_');
  if (word == "auto") word = "automatic";
  if (setting.type() == "sherd::DType" && word.starts_with("fp")) word.erase(1, 1);
  return setting.type() + "::" + word;
}

std::string type_of(const FieldDescriptor& field) {
  const Setting& setting = setting_of(field);
  const auto optional = [&](std::string type) {
    return setting.may_be_unset() ? fmt::format("std::optional<{}>", type) : type;
  };
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      return optional("int64_t");
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return optional("double");
    case FieldDescriptor::CPPTYPE_UINT64:
      return "uint64_t";
    case FieldDescriptor::CPPTYPE_BOOL:
      return "bool";
    case FieldDescriptor::CPPTYPE_STRING:
      if (setting.has_type()) return optional(setting.type());
      return setting.unit() == "BYTES" ? "int64_t" : "std::string";
    default:
      throw std::invalid_argument(field.name() + ": a type that settings do not have");
  }
}

/// The default as C++ text; empty: a type's own.
std::string initial(const FieldDescriptor& field, const std::string& type) {
  const Setting& setting = setting_of(field);
  if (setting.has_type())
    return setting.may_be_unset() && field.default_value_string() == "auto"
               ? ""
               : enumerator_of(setting, field.default_value_string());
  if (type == "int64_t" && field.cpp_type() == FieldDescriptor::CPPTYPE_INT64)
    return std::to_string(field.default_value_int64());
  if (type == "double") return fmt::format("{}", field.default_value_double());
  if (type == "bool") return field.default_value_bool() ? "true" : "false";
  if (type == "std::string" && field.has_default_value())
    return fmt::format("\"{}\"", field.default_value_string());
  return type == "int64_t" || type == "uint64_t" ? "0" : "";
}

/// Words of all settings of a type, in the order in which they first occur.
struct TypeWords {
  const Setting* first = nullptr;
  std::vector<std::string> words = {};
};

/// The table of a type's words. It does not compile where the enumeration has others, or in another order.
std::string words_text(const TypeWords& of) {
  const Setting& setting = *of.first;
  const std::string& type = setting.type();
  const std::vector<std::string>& words = of.words;
  std::string enumerators, checks;
  for (const std::string& word : words) {
    const std::string enumerator = enumerator_of(setting, word);
    enumerators += enumerator.substr(type.size() + 2) + ", ";
    checks += fmt::format("static_assert(kWords<{}>.name({}) == std::string_view(\"{}\"));\n", type,
                          enumerator, word);
  }
  const bool is_made = type.find("::") == std::string::npos;
  return (is_made ? fmt::format("enum class {} {{ {} }};\n", type, enumerators) : "") +
         fmt::format(
             "template <>\ninline constexpr sherd::EnumTable<{0}, {1}> kWords<{0}>{{\"{2}\"}};\n{3}\n", type,
             words.size(), fmt::join(words, "\", \""), checks);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::string members, places, words;
  std::map<std::string, TypeWords> types;
  const auto* const message = train_gpt::proto::TrainConfig::descriptor();
  for (int i = 0; i < message->field_count(); ++i) {
    const FieldDescriptor& field = *message->field(i);
    const Setting& setting = setting_of(field);
    const std::string type = type_of(field);
    const std::string value = initial(field, type);
    members += fmt::format("  {} {}{}{};\n", type, field.name(), value.empty() ? "" : " = ", value);
    const std::string place = fmt::format("s.{}", field.name());
    places += (i == 0 ? "" : ",\n          ") +
              (setting.has_type() ? fmt::format("sherd::word_target<kWords<{}>>({})", setting.type(), place)
                                  : "&" + place);
    if (!setting.has_type()) continue;
    TypeWords& of = types[setting.type()];
    if (of.first == nullptr) of.first = &setting;
    for (const std::string& word : words_of(setting))
      if (std::ranges::find(of.words, word) == of.words.end()) of.words.push_back(word);
  }
  for (const auto& [type, of] : types) words += words_text(of);
  std::ofstream out(argv[1]);
  out << "// Generated from settings.proto by settings_view.cpp.\n#pragma once\n\n#include <cstdint>\n"
         "#include <optional>\n#include <string>\n#include <string_view>\n#include <vector>\n\n";
  for (const char* header : kHeaders) out << "#include <sherd/" << header << ".h>\n";
  out << fmt::format(R"(
namespace train_gpt {{

/// Words of an enumeration.
template <class E>
inline constexpr int kWords = 0;

{}template <class E>
const char* word_of(E value) {{
  return kWords<E>.name(value);
}}

struct Settings {{
{}
  bool operator==(const Settings&) const = default;
}};

/// Where each value is stored, in the order of settings.proto.
inline std::vector<sherd::Field::Target> places_of(Settings& s) {{
  return {{{}}};
}}

}}  // namespace train_gpt
)",
                     words, members, places);
  return out.flush() ? 0 : 1;
}
