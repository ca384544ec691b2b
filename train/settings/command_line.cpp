#include <sherd/train/settings/command_line.h>

#include <algorithm>
#include <deque>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <sherd/base/error.h>
#include <sherd/train/settings/other_names.h>

namespace sherd {
namespace {

struct Option {
  const Field* field;
  CLI::Option* option;
  std::string text;
};

/// "--lr", or "run.txt: lr" when the file gave it: a bad value is never a default.
std::string source_of(const Field& field, const GivenFlags& given) {
  return given.has(field.name) ? flag_of(field) : fmt::format("{}: {}", given.config_file, field.name);
}

}  // namespace

bool GivenFlags::has(std::string_view name) const {
  return std::any_of(flags.begin(), flags.end(), [&](const Flag& flag) { return flag.field->name == name; });
}

GivenFlags read_flags(int argc, const char* const* argv, std::span<const FieldGroup> groups,
                      std::vector<std::string>& problems) {
  GivenFlags given;
  std::deque<Option> options;  // their texts stay where they are
  CLI::App app;
  app.allow_extras();
  app.set_help_flag("-h,--help");
  app.set_help_all_flag("--help-all");
  app.add_flag("--version", given.version);
  CLI::Option* config_option = app.add_option("--config", given.config_file)->take_last();
  for (const FieldGroup& group : groups) {
    for (const Field& field : group.fields) {
      Option& o = options.emplace_back(Option{&field, nullptr, ""});
      const bool is_switch = field.value[0] == '\0';
      o.option = is_switch ? app.add_flag(flag_of(field))
                           : app.add_option(flag_of(field), o.text)->take_last()->type_name(field.value);
      if (is_switch) o.text = "true";
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    given.help = true;
    return given;
  } catch (const CLI::CallForAllHelp&) {
    given.help = given.help_all = true;
    return given;
  } catch (const CLI::ParseError& e) {
    problems.push_back(e.what());
    return given;
  }
  std::vector<std::string_view> known;
  for (const Option& o : options) known.emplace_back(o.field->name);
  const auto takes_value =
      std::ranges::find_if(options, [](const Option& o) { return o.field->value[0] != '\0'; });
  const std::string example = takes_value == options.end()
                                  ? ""
                                  : fmt::format("; values follow flags, such as {} {}",
                                                flag_of(*takes_value->field), takes_value->field->value);
  bool after_unknown_flag = false;
  for (const std::string& extra : app.remaining()) {
    const bool is_flag = extra.starts_with('-');
    if (is_flag)
      problems.push_back(
          fmt::format("{}: unknown flag{}; --help-all lists all", extra, suggestion(extra, known)));
    if (!is_flag && !after_unknown_flag)
      problems.push_back(fmt::format("'{}': expected a flag{}", extra, example));
    after_unknown_flag = is_flag;
  }
  for (const Option& o : options)
    if (o.option->count() > 0) given.flags.push_back({o.field, o.text});
  if (config_option->count() > 0 && given.config_file.empty())
    problems.push_back("--config: the file's name is empty");
  return given;
}

std::set<std::string_view> set_given(const GivenFlags& given, std::vector<std::string>& problems) {
  std::set<std::string_view> refused;
  for (const auto& [field, text] : given.flags) {
    const std::string wrong =
        text.starts_with("--") ? "this is a flag where a value should be" : set_from_text(*field, text);
    if (wrong.empty()) continue;
    refused.insert(field->name);
    problems.push_back(fmt::format("{} {}: {}", flag_of(*field), text, wrong));
  }
  return refused;
}

std::set<std::string_view> check_values(std::span<const FieldGroup> groups, const GivenFlags& given,
                                        std::vector<std::string>& problems) {
  std::set<std::string_view> bad;
  for (const FieldGroup& group : groups) {
    for (const Field& field : group.fields) {
      const std::string wrong = check_value(field);
      if (wrong.empty()) continue;
      bad.insert(field.name);
      problems.push_back(fmt::format("{} {}: {}", source_of(field, given), show_value(field), wrong));
    }
  }
  return bad;
}

void throw_problems(const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  throw InvalidArgument(
      fmt::format("{} in the arguments:\n  {}",
                  problems.size() == 1 ? "a problem" : fmt::format("{} problems", problems.size()),
                  fmt::join(problems, "\n  ")));
}

}  // namespace sherd
