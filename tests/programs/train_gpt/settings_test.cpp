// settings.proto: what every setting says of itself.
#include "train_gpt/settings/settings.h"

#include <algorithm>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sherd/dtensor/layout.h>
#include <sherd/fsdp/strategy.h>
#include <sherd/train/data/token_format.h>
#include <sherd/train/data/token_windows.h>

#include "parse_flags.h"
#include "train_gpt/settings/launch_flags.h"
#include "train_gpt/settings/optimizer_config.h"
#include "train_gpt/settings/run_options.h"

namespace train_gpt {
namespace {

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

// The library's tables are where words become enums.
TEST(Settings, EveryWordIsOneOfTheLibrarys) {
  TrainConfig config;
  int words = 0;
  for (const sherd::FieldGroup& group : fields_of(config)) {
    for (const sherd::Field& field : group.fields) {
      if (!setting_of(field.name).has_words()) continue;
      const std::string standard = sherd::show_value(field);
      std::istringstream list(setting_of(field.name).words());
      for (std::string word; std::getline(list, word, '|'); ++words) {
        ASSERT_EQ(sherd::set_from_text(field, word), "");
        EXPECT_EQ(sherd::check_value(field), "");
        if (config.comm != "auto") {
          EXPECT_NO_THROW(launch_options(config)) << field.name << " " << word;
        }
        EXPECT_NO_THROW(optimizer_options(config)) << field.name << " " << word;
        EXPECT_NO_THROW(routing_options(config)) << field.name << " " << word;
        EXPECT_NO_THROW(schedule_of(config)) << field.name << " " << word;
        EXPECT_NO_THROW(sherd::parse_strategy(config.strategy)) << word;
        EXPECT_NO_THROW((void)sherd::parse_layout(config.layout)) << word;
        EXPECT_NO_THROW((void)sherd::parse_token_format(config.token_format)) << word;
        if (config.order != "auto") {
          EXPECT_NO_THROW(sherd::parse_token_order(config.order)) << word;
        }
      }
      (void)sherd::set_from_text(field, standard);
    }
  }
  EXPECT_GT(words, 60);
}

TEST(Settings, AliasesAreReplacedByWords) {
  EXPECT_EQ(parse({"--strategy", "zero1"}).strategy, "optim");
  EXPECT_THAT(refusal({"--strategy", "zero"}), ::testing::HasSubstr("must be one of no_shard|optim"));
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
