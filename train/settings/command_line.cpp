#include <sherd/train/settings/command_line.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <sherd/kernels/device/error.h>

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

/// Characters to insert, delete or replace between the two (Levenshtein, 1966).
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = std::exchange(row[j + 1], std::min({row[j] + 1, row[j + 1] + 1, replaced}));
    }
  }
  return row[b.size()];
}

/// "; did you mean --lr?", where a flag differs by a third of its letters or less.
std::string suggestion(std::string_view unknown, const std::deque<Option>& options) {
  const std::string_view flag = unknown.substr(0, unknown.find('='));
  const auto far = [&](const Option& o) { return distance(flag, flag_of(*o.field)); };
  const auto nearest = std::min_element(options.begin(), options.end(),
                                        [&](const Option& a, const Option& b) { return far(a) < far(b); });
  if (nearest == options.end() || 3 * far(*nearest) > flag.size()) return "";
  return fmt::format("; did you mean {}?", flag_of(*nearest->field));
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
      o.option =
          is_switch ? app.add_flag(flag_of(field)) : app.add_option(flag_of(field), o.text)->take_last();
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
  bool after_unknown_flag = false;
  for (const std::string& extra : app.remaining()) {
    const bool is_flag = extra.starts_with('-');
    if (is_flag)
      problems.push_back(
          fmt::format("{}: unknown flag{}; --help-all lists all", extra, suggestion(extra, options)));
    if (!is_flag && !after_unknown_flag) problems.push_back(fmt::format("'{}': expected a flag", extra));
    after_unknown_flag = is_flag;
  }
  for (const Option& o : options)
    if (o.option->count() > 0) given.flags.push_back({o.field, o.text});
  if (config_option->count() > 0 && given.config_file.empty())
    problems.push_back("--config: the file's name is empty");
  return given;
}

void set_given(const GivenFlags& given, std::vector<std::string>& problems) {
  for (const auto& [field, text] : given.flags) {
    const std::string wrong =
        text.starts_with("--") ? "this is a flag where a value should be" : set_from_text(*field, text);
    if (!wrong.empty()) problems.push_back(fmt::format("{} {}: {}", flag_of(*field), text, wrong));
  }
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
