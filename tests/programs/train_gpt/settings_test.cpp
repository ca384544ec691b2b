// settings.proto: what every setting says of itself.
#include "train_gpt/settings/settings.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sherd/train/settings/config_file.h>
#include <sherd/train/settings/saved_settings.h>

#include "parse_flags.h"

namespace train_gpt {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string help(const char* flag) { return parse_line({flag}).help.value(); }

TEST(Settings, SayWhatTheyAre) {
  const auto& message = *proto::TrainConfig::descriptor();
  std::set<proto::Subject> done;
  for (int i = 0; i < message.field_count(); ++i) {
    const auto& field = *message.field(i);
    const proto::Setting& s = field.options().GetExtension(proto::setting);
    EXPECT_TRUE(s.has_help() && s.has_subject() && s.has_scope()) << field.name();
    EXPECT_FALSE(s.has_unit() && s.has_words()) << field.name();
    EXPECT_LE(s.low(), s.high()) << field.name();
    EXPECT_TRUE(!s.path() || field.cpp_type() == field.CPPTYPE_STRING) << field.name();
    for (const std::string& other : s.replaced_by())
      EXPECT_NE(message.FindFieldByName(other), nullptr) << field.name();
    EXPECT_TRUE(field.cpp_type() == field.CPPTYPE_BOOL || s.has_unit() || s.has_words()) << field.name();
    // A subject is one heading of --help-all.
    const bool begins = i == 0 || s.subject() != setting_of(message.field(i - 1)->name()).subject();
    EXPECT_EQ(done.insert(s.subject()).second, begins) << field.name();
  }
}

TEST(Settings, OfTheFirstDayAreInHelpAndAllInHelpAll) {
  const auto options = [](const std::string& text) {
    const std::vector<std::string> lines = lines_of(text);
    return std::ranges::count_if(lines, [](const std::string& line) { return line.starts_with("  --"); });
  };
  const std::string some = help("--help"), all = help("--help-all");
  EXPECT_LE(options(some), 30);
  EXPECT_EQ(options(some),
            std::ssize(settings_where([](const proto::Setting& s) { return s.first_day(); })) + 4);
  EXPECT_EQ(options(all), proto::TrainConfig::descriptor()->field_count() + 4)
      << "--config, --help, --help-all, --version";
  for (const std::string& text : {some, all})
    for (const std::string& line : lines_of(text)) EXPECT_LE(line.size(), 110u) << line;
}

TEST(Settings, OfTheModelAreInheritedAndComparedAndOfARankNeither) {
  const auto scope = [](const char* name) { return setting_of(name).scope(); };
  EXPECT_EQ(scope("dim"), proto::OF_MODEL);
  EXPECT_EQ(scope("lr"), proto::OF_RUN);
  EXPECT_EQ(scope("ranks"), proto::OF_JOB);
  EXPECT_EQ(scope("threads"), proto::OF_RANK);
  EXPECT_THAT(settings_where([](const proto::Setting& s) { return s.scope() == proto::OF_MODEL; }),
              SizeIs(12));
}

/// All fields of settings, with what settings.proto says of each.
struct All {
  TrainConfig config;
  std::vector<sherd::FieldGroup> groups = fields_of(config);

  template <class F>
  void each(F visit) const {
    for (const sherd::FieldGroup& group : groups)
      for (const sherd::Field& field : group.fields)
        visit(field, *proto::TrainConfig::descriptor()->FindFieldByName(field.name));
  }
};

std::vector<std::string> words_of(std::string_view list) {
  std::istringstream in{std::string(list)};
  std::vector<std::string> words;
  for (std::string word; std::getline(in, word, '|');) words.push_back(word);
  return words;
}

bool is_number(const google::protobuf::FieldDescriptor& described) {
  return described.cpp_type() == described.CPPTYPE_INT64 || described.cpp_type() == described.CPPTYPE_DOUBLE;
}

/// A value of the field, in its words or bounds, that is not its default.
std::string another(const sherd::Field& field, const google::protobuf::FieldDescriptor& described) {
  const std::string standard = sherd::show_value(field);
  if (described.cpp_type() == described.CPPTYPE_BOOL) return standard == "true" ? "false" : "true";
  if (setting_of(field.name).has_words()) {
    const std::vector<std::string> words = words_of(field.value);
    return words.back() == standard ? words.front() : words.back();
  }
  if (described.cpp_type() == described.CPPTYPE_STRING && field.value != std::string_view("BYTES"))
    return "some";
  for (const double share : {0.25, 0.5}) {
    const double number = field.low + share * (std::min(field.high, 1e6) - field.low);
    const std::string text = described.cpp_type() == described.CPPTYPE_DOUBLE
                                 ? fmt::format("{}", number)
                                 : fmt::format("{}", std::llround(number));
    if (text != standard) return text;
  }
  return "";
}

std::vector<std::string> flags_for(const sherd::Field& field, const std::string& value) {
  if (field.value[0] == '\0') return {sherd::flag_of(field)};
  return {sherd::flag_of(field), value};
}

TEST(Settings, HaveTheDefaultsOfTheFile) {
  All().each([](const sherd::Field& field, const auto& described) {
    const std::string shown = sherd::show_value(field), name = field.name;
    if (name == "data") {
      EXPECT_EQ(shown, default_data_folder());
    } else if (described.cpp_type() == described.CPPTYPE_STRING) {
      EXPECT_EQ(shown, field.value == std::string_view("BYTES") ? "0" : described.default_value_string())
          << name;
    } else if (setting_of(name).may_be_unset()) {
      EXPECT_EQ(shown, "") << name;
    } else if (described.cpp_type() == described.CPPTYPE_BOOL) {
      EXPECT_EQ(shown, described.default_value_bool() ? "true" : "false") << name;
    } else if (described.cpp_type() == described.CPPTYPE_DOUBLE) {
      EXPECT_EQ(shown, fmt::format("{}", described.default_value_double())) << name;
    } else if (described.cpp_type() == described.CPPTYPE_INT64) {
      EXPECT_EQ(shown, std::to_string(described.default_value_int64())) << name;
    }
  });
}

TEST(Settings, AreTheSameByFlagsInAFileAndInACheckpoint) {
  All standard, want;
  std::vector<std::string> flags, names;
  std::string text;
  standard.each([&](const sherd::Field& field, const auto& described) {
    const std::string value = another(field, described), name = field.name;
    const std::vector<std::string> flag = flags_for(field, value);
    flags.insert(flags.end(), flag.begin(), flag.end());
    const bool quoted = described.cpp_type() == described.CPPTYPE_STRING;
    text += fmt::format("{}: {}\n", name, quoted ? '"' + value + '"' : value);
  });
  std::vector<const char*> argv = {"train_gpt"};
  for (const std::string& flag : flags) argv.push_back(flag.c_str());
  std::vector<std::string> problems;
  sherd::set_given(sherd::read_flags(static_cast<int>(argv.size()), argv.data(), want.groups, problems),
                   problems);
  EXPECT_THAT(problems, ::testing::IsEmpty());

  std::vector<std::string> shown;
  want.each([&](const sherd::Field& field, const auto&) { shown.push_back(sherd::show_value(field)); });
  size_t i = 0;
  standard.each([&](const sherd::Field& field, const auto& described) {
    EXPECT_EQ(shown[i++], another(field, described)) << field.name;
  });

  const TemporaryFolder folder;
  All file;
  proto::TrainConfig message;
  sherd::read_config_file(folder.write("all.txtpb", text), message, file.groups, problems);
  EXPECT_EQ(config_text(file.config), config_text(want.config));
  EXPECT_TRUE(file.config == want.config);

  All resumed;
  const sherd::SavedTraining saved{.checkpoint = "run",
                                   .training = {.info = {{"config", config_text(want.config)}}}};
  const std::vector<std::string_view> all = settings_where([](const proto::Setting&) { return true; });
  EXPECT_EQ(sherd::take_saved_settings(saved, resumed.groups, all, problems).size(), all.size());
  EXPECT_TRUE(resumed.config == want.config);
  EXPECT_THAT(problems, ::testing::IsEmpty());
}

TEST(Settings, TakeTheirWordsAndRangesAlone) {
  All all;
  all.each([](const sherd::Field& field, const auto& described) {
    const auto accepts = [&](const std::string& text) {
      return sherd::set_from_text(field, text).empty() && sherd::check_value(field).empty();
    };
    const std::string standard = sherd::show_value(field);
    if (setting_of(field.name).has_words()) {
      for (const std::string& word : words_of(field.value)) {
        EXPECT_TRUE(accepts(word)) << field.name << " " << word;
        EXPECT_EQ(sherd::show_value(field), word) << field.name;
      }
      (void)sherd::set_from_text(field, standard);
      EXPECT_THAT(
          refusal({sherd::flag_of(field), "nonsense"}),
          HasSubstr(sherd::flag_of(field) + " nonsense: must be " +
                    (described.cpp_type() == described.CPPTYPE_BOOL ? "true or false"
                                                                    : "one of " + std::string(field.value))));
      for (const std::string& alias : words_of(setting_of(field.name).aliases())) {
        EXPECT_TRUE(accepts(alias.substr(0, alias.find('=')))) << alias;
        EXPECT_EQ(sherd::show_value(field), alias.substr(alias.find('=') + 1));
      }
    } else if (is_number(described)) {
      const bool whole = described.cpp_type() == described.CPPTYPE_INT64;
      const auto text = [&](double value) {
        return whole ? std::to_string(std::llround(value)) : fmt::format("{}", value);
      };
      EXPECT_EQ(accepts(text(field.low)), !field.above_low) << field.name;
      EXPECT_EQ(accepts(text(field.high)), !field.below_high) << field.name;
      for (const std::string& wrong :
           {text(whole ? field.low - 1 : std::nextafter(field.low, -1e30)),
            text(whole ? field.high + 1 : std::nextafter(field.high, 1e300)), std::string("nan"),
            std::string("1e999"), std::string("1e+32"), std::string("2x"), std::string()})
        EXPECT_THAT(refusal({sherd::flag_of(field), wrong}),
                    HasSubstr(fmt::format("{} {}: must be", sherd::flag_of(field), wrong)));
    }
  });
}

/// Flags with which the condition of a rule holds, or does not.
std::vector<std::string> flags_of(const All& all, const std::string& condition, bool holds) {
  const size_t equals = condition.find('=');
  std::vector<std::string> flags;
  bool known = false;
  all.each([&](const sherd::Field& field, const auto& described) {
    if (field.name != condition.substr(0, equals)) return;
    known = true;
    const std::string standard = sherd::show_value(field);
    if (equals == std::string::npos) {
      if (holds) flags = flags_for(field, another(field, described));
      return;
    }
    const std::vector<std::string> words = words_of(condition.substr(equals + 1));
    for (const std::string& word : words) EXPECT_EQ(sherd::set_from_text(field, word), "") << condition;
    (void)sherd::set_from_text(field, standard);
    const bool now = std::ranges::count(words, standard) > 0;
    if (now != holds) flags = flags_for(field, holds ? words.front() : another(field, described));
  });
  EXPECT_TRUE(known) << condition;
  return flags;
}

TEST(Settings, EveryRuleIsRefusedWithItsReason) {
  All all;
  int rules = 0;
  all.each([&](const sherd::Field& field, const auto& described) {
    const proto::Setting& setting = setting_of(field.name);
    const auto check = [&](const proto::Rule& rule) {
      ++rules;
      EXPECT_NE(rule.needs().empty(), rule.not_with().empty()) << field.name << ": one of the two";
      std::vector<std::vector<std::string>> runs;
      for (const std::string& other : rule.not_with()) runs.push_back(flags_of(all, other, true));
      if (!rule.needs().empty()) runs.emplace_back();
      for (const std::string& need : rule.needs()) {
        const std::vector<std::string> flags = flags_of(all, need, false);
        runs.back().insert(runs.back().end(), flags.begin(), flags.end());
      }
      for (std::vector<std::string> flags : runs) {
        const std::vector<std::string> own =
            flags_for(field, rule.has_value() ? rule.value() : another(field, described));
        flags.insert(flags.end(), own.begin(), own.end());
        const std::string reason = rule.because(), text = refusal(flags);
        for (const std::string& part :
             {reason.substr(0, reason.find('{')), reason.substr(reason.find('}') + 1), sherd::flag_of(field)})
          EXPECT_THAT(text, HasSubstr(part)) << fmt::format("{}", fmt::join(flags, " "));
      }
    };
    for (const int need : setting.needs())
      check(proto::Need_descriptor()->FindValueByNumber(need)->options().GetExtension(proto::rule));
    for (const proto::Rule& rule : setting.rule()) check(rule);
  });
  EXPECT_GT(rules, 100);
}

TEST(Settings, ChangedAreShownAsFlags) {
  Settings s;
  s.tf32 = true;
  s.lr = 0.5;
  s.seq = 4;
  EXPECT_THAT(changed_flags(s, {}, [](std::string_view name) { return name != "seq"; }),
              ::testing::ElementsAre("--lr 0.5", "--tf32"));
}

}  // namespace
}  // namespace train_gpt
