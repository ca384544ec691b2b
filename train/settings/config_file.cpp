#include <sherd/train/settings/config_file.h>

#include <fmt/format.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <sherd/base/error.h>
#include <sherd/checkpoint/files/file_system.h>
#include <sherd/train/settings/other_names.h>

namespace sherd {
namespace {

class Collector : public google::protobuf::io::ErrorCollector {
 public:
  Collector(const std::string& path, std::span<const FieldGroup> groups, std::vector<std::string>& problems)
      : path_(path), problems_(problems) {
    for (const FieldGroup& group : groups)
      for (const Field& field : group.fields) known_.emplace_back(field.name);
  }

  /// Both count from 0.
  void AddError(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override {
    const std::string near = suggestion(unknown_in(message), known_);
    std::string_view what = message;
    if (!near.empty() && what.ends_with('.')) what.remove_suffix(1);
    problems_.push_back(fmt::format("{}:{}:{}: {}{}", path_, line + 1, column + 1, what, near));
  }

 private:
  /// NAME of Protobuf's 'has no field named "NAME".'; empty in other messages.
  static std::string_view unknown_in(std::string_view message) {
    constexpr std::string_view kBefore = "no field named \"";
    const size_t at = message.find(kBefore);
    if (at == message.npos) return {};
    message.remove_prefix(at + kBefore.size());
    return message.substr(0, message.find('"'));
  }

  const std::string& path_;
  std::vector<std::string>& problems_;
  std::vector<std::string_view> known_;
};

template <class T>
T get(const google::protobuf::Message& message, const google::protobuf::FieldDescriptor* field) {
  const google::protobuf::Reflection* reflection = message.GetReflection();
  if constexpr (std::is_same_v<T, std::string>) return reflection->GetString(message, field);
  if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, std::optional<int64_t>>)
    return reflection->GetInt64(message, field);
  if constexpr (std::is_same_v<T, uint64_t>) return reflection->GetUInt64(message, field);
  if constexpr (std::is_same_v<T, double> || std::is_same_v<T, std::optional<double>>)
    return reflection->GetDouble(message, field);
  if constexpr (std::is_same_v<T, bool>) return reflection->GetBool(message, field);
}

}  // namespace

void read_config_file(const std::string& path, google::protobuf::Message& message,
                      std::span<const FieldGroup> groups, std::vector<std::string>& problems) {
  constexpr int64_t kMaxBytes = 1 << 20;
  const std::string text = read_whole(FileSystem::posix(), path, kMaxBytes);

  Collector collector(path, groups, problems);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&collector);
  if (!parser.ParseFromString(text, &message)) {
    problems.push_back(
        fmt::format("{}: config files are Protobuf text, not YAML or JSON: a line `name: value` for each "
                    "option, underscores for dashes, texts in double quotes",
                    path));
    return;
  }

  for (const FieldGroup& group : groups) {
    for (const Field& field : group.fields) {
      const auto* described = message.GetDescriptor()->FindFieldByName(field.name);
      if (!message.GetReflection()->HasField(message, described)) continue;
      if (described->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_STRING) {
        const std::string value = get<std::string>(message, described);
        const std::string wrong = set_from_text(field, value);
        if (!wrong.empty())
          problems.push_back(fmt::format("{}: {} \"{}\": {}", path, field.name, value, wrong));
        continue;
      }
      std::visit(
          [&](auto value) {
            using T = std::remove_pointer_t<decltype(value)>;
            if constexpr (!std::is_same_v<T, WordTarget>) *value = get<T>(message, described);
          },
          field.target);
    }
  }
}

}  // namespace sherd
