#include "train_gpt/settings/setting_rules.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/error.h>

#include "train_gpt/settings/settings.h"

namespace train_gpt {
namespace {

/// "lr_schedule=cosine|wsd": the name and the words; no words: any value but the default.
struct Condition {
  explicit Condition(std::string_view text)
      : name(text.substr(0, text.find('='))), words(text.substr(std::min(name.size() + 1, text.size()))) {}

  bool has(std::string_view word) const {
    return fmt::format("|{}|", words).find(fmt::format("|{}|", word)) != std::string::npos;
  }
  /// The flag with the words, "--lr-schedule cosine or wsd", or with the unit of its value, "--save DIR".
  std::string shown() const {
    const proto::Setting& setting = setting_of(name);
    std::string value = words.empty() ? setting.unit() : std::string(words);
    for (size_t bar = value.find('|'); bar != std::string::npos; bar = value.find('|', bar))
      value.replace(bar, 1, value.find('|', bar + 1) == std::string::npos ? " or " : ", ");
    return sherd::flag_of(name) + (value.empty() ? "" : " " + value);
  }

  std::string_view name, words;
};

std::vector<const proto::Rule*> rules_of(const proto::Setting& setting) {
  std::vector<const proto::Rule*> rules;
  for (const int need : setting.needs())
    rules.push_back(&proto::Need_descriptor()->FindValueByNumber(need)->options().GetExtension(proto::rule));
  for (const proto::Rule& rule : setting.rule()) rules.push_back(&rule);
  return rules;
}

std::string remedy_of(const proto::Rule& rule) {
  if (rule.has_remedy()) return rule.remedy();
  if (rule.needs().empty()) return "give one of the two";
  std::vector<std::string> flags;
  for (const std::string& need : rule.needs()) flags.push_back(Condition(need).shown());
  return fmt::format("give {}", fmt::join(flags, " or "));
}

}  // namespace

RuleCheck::RuleCheck(Settings settings, Settings standard, const Given& given,
                     const std::set<std::string_view>& bad, std::vector<std::string>& problems)
    : given_(given), bad_(bad), problems_(problems) {
  const std::vector<sherd::FieldGroup> fields = fields_of(settings), defaults = fields_of(standard);
  for (size_t g = 0; g < fields.size(); ++g) {
    for (size_t i = 0; i < fields[g].fields.size(); ++i) {
      const sherd::Field& field = fields[g].fields[i];
      const std::string now = sherd::show_value(field);
      values_.push_back(
          {field.name, now, sherd::show_value(defaults[g].fields[i]), flag_with_value(field, now)});
    }
  }
}

void RuleCheck::check_all() const {
  struct Breach {
    std::string_view name;
    std::string flags, reason;
  };
  std::vector<Breach> breaches;
  for (const Value& value : values_) {
    const std::string_view name = value.name;
    for (const proto::Rule* rule : rules_of(setting_of(name))) {
      const bool set = rule->set() == proto::FLAG    ? given_.flags.has(name)
                       : rule->set() == proto::GIVEN ? given_.by_anyone(name)
                                                     : value.now != value.standard;
      if (!set || !good(name) || (rule->has_value() && rule->value() != value.now)) continue;
      // What depends on a value that is refused itself is unknown.
      const auto is_open = [this](const std::string& condition) { return !good(Condition(condition).name); };
      if (std::ranges::any_of(rule->needs(), is_open) || std::ranges::any_of(rule->not_with(), is_open))
        continue;
      const auto is_true = [this](const std::string& condition) { return holds(condition); };
      const auto other = std::ranges::find_if(rule->not_with(), is_true);
      const bool lacks = !rule->needs().empty() && std::ranges::none_of(rule->needs(), is_true);
      if (!lacks && other == rule->not_with().end()) continue;
      const std::string with = lacks ? "" : find(Condition(*other).name).flag;
      std::string reason =
          fmt::format("{}; {}", fmt::format(fmt::runtime(rule->because()), with), remedy_of(*rule));
      const std::string flag =
          rule->set() == proto::CHANGED || rule->has_value() ? value.flag : sherd::flag_of(name);
      const auto same = std::ranges::find(breaches, reason, &Breach::reason);
      if (same == breaches.end())
        breaches.push_back({name, flag, std::move(reason)});
      else
        same->flags += ", " + flag;
    }
  }
  for (const Breach& b : breaches) add(b.name, fmt::format("{}: {}", b.flags, b.reason));
}

void RuleCheck::collect(std::string_view name, const std::function<void()>& check) const {
  try {
    check();
  } catch (const sherd::InvalidArgument& e) {
    add(name, fmt::format("{}: {}", sherd::flag_of(name), e.what()));
  }
}

void RuleCheck::add(std::string_view name, std::string problem) const {
  if (std::ranges::find(given_.inherited, name) != given_.inherited.end())
    problem += fmt::format(" ({} was saved with the checkpoint of --resume {}; give the flag to replace it)",
                           sherd::flag_of(name), given_.checkpoint);
  problems_.push_back(std::move(problem));
}

const RuleCheck::Value& RuleCheck::find(std::string_view name) const {
  return *std::ranges::find(values_, name, &Value::name);
}

bool RuleCheck::holds(const std::string& text) const {
  const Condition condition(text);
  const Value& value = find(condition.name);
  return condition.words.empty() ? value.now != value.standard : condition.has(value.now);
}

}  // namespace train_gpt
