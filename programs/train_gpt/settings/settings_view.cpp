// Build step: prints settings_values.h, the C++ struct of the settings in settings.proto.
#include <cstdio>
#include <fstream>
#include <string>

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>

#include "settings.pb.h"

namespace {

using google::protobuf::FieldDescriptor;

std::string type_of(const FieldDescriptor& field, const train_gpt::proto::Setting& setting) {
  const auto number = [&](std::string type) {
    return setting.may_be_unset() ? fmt::format("std::optional<{}>", type) : type;
  };
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      return number("int64_t");
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return number("double");
    case FieldDescriptor::CPPTYPE_UINT64:
      return "uint64_t";
    case FieldDescriptor::CPPTYPE_BOOL:
      return "bool";
    case FieldDescriptor::CPPTYPE_STRING:
      return setting.unit() == "BYTES" ? "int64_t" : "std::string";
    default:
      throw std::invalid_argument(field.name() + ": a type that settings do not have");
  }
}

/// The default as C++ text; empty: a type's own.
std::string initial(const FieldDescriptor& field, const std::string& type) {
  if (type == "int64_t" && field.cpp_type() == FieldDescriptor::CPPTYPE_INT64)
    return std::to_string(field.default_value_int64());
  if (type == "double") return fmt::format("{}", field.default_value_double());
  if (type == "bool") return field.default_value_bool() ? "true" : "false";
  if (type == "std::string" && field.has_default_value())
    return fmt::format("\"{}\"", field.default_value_string());
  return type == "int64_t" || type == "uint64_t" ? "0" : "";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::string members, places;
  const auto* const message = train_gpt::proto::TrainConfig::descriptor();
  for (int i = 0; i < message->field_count(); ++i) {
    const FieldDescriptor& field = *message->field(i);
    const std::string type = type_of(field, field.options().GetExtension(train_gpt::proto::setting));
    const std::string value = initial(field, type);
    members += fmt::format("  {} {}{}{};\n", type, field.name(), value.empty() ? "" : " = ", value);
    places += fmt::format("{}&s.{}", i == 0 ? "" : ",\n          ", field.name());
  }
  std::ofstream out(argv[1]);
  out << "// Generated from settings.proto by settings_view.cpp.\n#pragma once\n\n"
         "#include <cstdint>\n#include <optional>\n#include <string>\n#include <vector>\n\n"
         "#include <sherd/train/settings/fields.h>\n\nnamespace train_gpt {\n\n"
      << "struct Settings {\n"
      << members << "\n  bool operator==(const Settings&) const = default;\n};\n\n"
      << "/// Where each value is stored, in the order of settings.proto.\n"
      << "inline std::vector<sherd::Field::Target> places_of(Settings& s) {\n  return {" << places
      << "};\n}\n\n}  // namespace train_gpt\n";
  return out.flush() ? 0 : 1;
}
