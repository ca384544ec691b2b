// A program's settings from defaults, a file and flags.
#include <sherd/train/settings/fields.h>

#include <cstdint>
#include <optional>
#include <utility>

#include <google/protobuf/wrappers.pb.h>

#include <sherd/base/error.h>
#include <sherd/train/settings/command_line.h>
#include <sherd/train/settings/config_file.h>
#include <sherd/train/settings/other_names.h>

#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd {
namespace {

using ::testing::Contains;

struct Settings {
  int64_t value = 4;  // named as the field of the message that stands for a program's
  int64_t memory = 0;
  uint64_t seed = 0;
  double lr = 0.5;
  bool quiet = false;
  std::string strategy = "optim";
};

std::vector<FieldGroup> fields_of(Settings& s) {
  return {{"Training",
           {{"value", &s.value, "N", "some number", 1, 10},
            {"memory", &s.memory, "BYTES", "bound", 0, 1e15},
            {"lr", &s.lr, "X", "learning rate", 0, 1}}},
          {"Other",
           {{"seed", &s.seed, "N", "of everything"},
            {"quiet", &s.quiet, "", "print errors only"},
            {"strategy", &s.strategy, "optim|none", "what is sharded", 0, 0, "zero0=none|zero1=optim"}}}};
}

std::vector<std::string> parse(Settings& s, std::vector<const char*> flags) {
  flags.insert(flags.begin(), "program");
  const auto fields = fields_of(s);
  std::vector<std::string> problems;
  const GivenFlags given = read_flags(static_cast<int>(flags.size()), flags.data(), fields, problems);
  if (!given.config_file.empty()) {
    google::protobuf::Int64Value message;
    std::vector<FieldGroup> in_file = {{"File", {fields[0].fields[0]}}};
    read_config_file(given.config_file, message, in_file, problems);
  }
  set_given(given, problems);
  check_values(fields, given, problems);
  return problems;
}

TEST(Fields, FlagsWinOverTheFileAndTheFileOverDefaults) {
  const TemporaryFolder folder;
  const std::string file = folder.write("c.txtpb", "value: 7");
  Settings s;
  EXPECT_THAT(parse(s, {"--lr", "0.25", "--seed=18446744073709551615", "--memory", "2K", "--strategy",
                        "zero1", "--quiet", "--config", file.c_str()}),
              IsEmpty());
  EXPECT_EQ(s.value, 7);
  EXPECT_EQ(s.memory, 2048);
  EXPECT_EQ(s.lr, 0.25);
  EXPECT_EQ(s.seed, UINT64_MAX);
  EXPECT_TRUE(s.quiet);
  EXPECT_EQ(s.strategy, "optim");
  EXPECT_THAT(parse(s, {"--value", "8", "--config", file.c_str()}), IsEmpty());
  EXPECT_EQ(s.value, 8);
}

TEST(Fields, EveryProblemIsNamedInTheOrderOfTheTable) {
  const TemporaryFolder folder;
  const std::string file = folder.write("c.txtpb", "value: 11");
  Settings s;
  const auto problems = parse(s, {"--strategy", "zero9", "--lr", "fast", "--none", "--config", file.c_str()});
  EXPECT_THAT(problems, ElementsAre("--none: unknown flag; --help-all lists all",
                                    "--lr fast: must be a number", file + ": value 11: must be from 1 to 10",
                                    "--strategy zero9: must be one of optim|none"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { throw_problems(problems); }),
              AllOf(HasSubstr("4 problems in the arguments:"), HasSubstr("  --lr fast")));
  throw_problems({});
  const std::string wrong = folder.write("d.txtpb", "value: 1\nvolume: 2");
  EXPECT_THAT(parse(s, {"--config", wrong.c_str()}), Contains(HasSubstr(wrong + ":2:")));
  const std::string yaml = folder.write("e.yaml", "strategy: optim\nlist:\n  - 1\n");
  EXPECT_THAT(parse(s, {"--config", yaml.c_str()}),
              Contains(HasSubstr(yaml + ": config files are Protobuf text, not YAML or JSON")));
}

enum class Color { red, green };
constexpr EnumTable<Color, 2> kColors{"red", "green"};

TEST(Fields, WordsOfAnEnumerationAreItsValues) {
  Color color = Color::red;
  std::optional<Color> chosen = Color::red;
  const Field field{"color", word_target<kColors>(color), "red|green", "", 0, 0, "lime=green"};
  const Field optional{"chosen", word_target<kColors>(chosen), "red|green|auto", ""};
  EXPECT_EQ(set_from_text(field, "lime"), "");
  EXPECT_EQ(color, Color::green);
  EXPECT_EQ(show_value(field), "green");
  EXPECT_EQ(set_from_text(field, "auto"), "must be one of red|green");
  EXPECT_EQ(color, Color::green);
  EXPECT_EQ(set_from_text(optional, "auto"), "");
  EXPECT_EQ(chosen, std::nullopt);
  const std::vector<FieldGroup> groups = {{"", {field, optional}}};
  EXPECT_EQ(config_text(groups), R"({"color":"green","chosen":"auto"})");
  EXPECT_EQ(set_from_text(optional, "green"), "");
  EXPECT_EQ(chosen, Color::green);
}

TEST(Fields, ExcludedBoundsAreRefused) {
  double rate = 0, decay = 1;
  const Field above{"rate", &rate, "X", "", 0, 2, "", false, true},
      below{"decay", &decay, "X", "", 0, 1, "", false, false, true};
  EXPECT_EQ(check_value(above), "must be greater than 0 and at most 2");
  EXPECT_EQ(check_value(below), "must be less than 1 and at least 0");
  rate = 2, decay = 0;
  EXPECT_EQ(check_value(above) + check_value(below), "");
}

TEST(Fields, NumbersThatAreNotFiniteOrHaveASignAtZeroAreRefused) {
  Settings s;
  EXPECT_THAT(parse(s, {"--lr", "nan"}), ElementsAre("--lr nan: must be from 0 to 1, and finite"));
  EXPECT_THAT(parse(s, {"--lr", "-inf"}), ElementsAre("--lr -inf: must be from 0 to 1, and finite"));
  s.lr = 0.5;
  EXPECT_THAT(parse(s, {"--lr", "1e400"}),
              ElementsAre("--lr 1e400: must be from 0 to 1; this has no 64-bit representation"));
  EXPECT_THAT(parse(s, {"--lr", "1e-400"}),
              ElementsAre("--lr 1e-400: must be from 0 to 1; this has no 64-bit representation"));
  EXPECT_THAT(parse(s, {"--lr", "-0"}), ElementsAre("--lr -0: must be from 0 to 1; write 0 without a sign"));
  EXPECT_THAT(
      parse(s, {"--value", "99999999999999999999"}),
      ElementsAre("--value 99999999999999999999: must be from 1 to 10; this has no 64-bit representation"));
  EXPECT_THAT(parse(s, {"--memory", "-0"}), ElementsAre(HasSubstr("--memory -0: must be a number of bytes")));
}

TEST(Fields, UnknownNamesAreThoseOfOtherProgramsOrNearOnes) {
  const std::vector<std::string_view> known = {
      "lr", "batch", "grad_accum", "steps", "steps_between", "precision", "warmup", "ns_steps", "save_every"};
  const std::pair<const char*, const char*> cases[] = {
      {"--learning-rate", "; did you mean --lr?"},
      {"--learning_rate=1", "; did you mean --lr?"},
      {"learning_rate", "; did you mean --lr?"},
      {"-lr", "; did you mean --lr?"},
      {"--optimizer.lr", "; did you mean --lr?"},
      {"--LR", "; did you mean --lr?"},
      {"--batchsize", "; did you mean --batch?"},
      {"--batch_size=4", "; did you mean --batch?"},
      {"--bf16", "; did you mean --precision bf16?"},
      {"--fp16", "; did you mean --precision bf16? fp16 is not supported; bf16 needs no loss scaling"},
      {"--gradient-accumulation-steps", "; did you mean --grad-accum?"},
      {"--epochs",
       "; did you mean --steps? runs are measured in steps: an epoch has the data's windows / --batch steps"},
      {"--max-steps", "; did you mean --steps?"},
      {"--save-steps", "; did you mean --save-every?"},
      {"--warm", "; did you mean --warmup?"},
      {"--ste", "; did you mean --steps or --steps-between?"},
      {"--wramup", "; did you mean --warmup?"},
      {"--stpes", "; did you mean --steps?"},
      {"--bacth", "; did you mean --batch?"},
      {"--local-rank", "; ranks and addresses are read from the launcher's environment; leave it out"},
      {"--frobnicate", ""},
      {"--", ""}};
  for (const auto& [unknown, wanted] : cases) EXPECT_EQ(suggestion(unknown, known), wanted) << unknown;
  EXPECT_EQ(suggestion("--num-experts", known), "") << "a setting that the program does not have";
  const TemporaryFolder folder;
  Settings s;
  const std::string file = folder.write("c.txtpb", "values: 7");
  EXPECT_THAT(parse(s, {"--config", file.c_str()}),
              Contains(HasSubstr("no field named \"values\"; did you mean --value?")));
}

TEST(Fields, HelpAndRecordFollowTheTable) {
  Settings s;
  const auto fields = fields_of(s);
  EXPECT_EQ(config_text(fields),
            R"({"value":4,"memory":0,"lr":0.5,"seed":0,"quiet":false,"strategy":"optim"})");
  EXPECT_THAT(help_text("program: does it\n\n", fields, false),
              AllOf(testing::StartsWith("program: does it\n\n  --config FILE"),
                    HasSubstr("\nTraining\n  --value N                 some number [4]\n"),
                    HasSubstr("  --quiet                   print errors only\n"),
                    HasSubstr("what is sharded\n                            optim|none [optim]\n")));
}

TEST(Fields, HelpListsTheFirstDayAndHelpAllEverythingInShortLines) {
  int64_t often = 1, seldom = 2;
  std::string word = "aaaa";
  const std::string help =
      "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen";
  const std::string words =
      "aaaa|bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb|cccccccccccccccccccccccccccccccc|dddddddddddddddddddd";
  std::vector<FieldGroup> groups = {
      {"First", {{"often", &often, "N", help.c_str(), 0, 8, "", true}}},
      {"Rest", {{"seldom", &seldom, "N", "some number", 0, 8}, {"word", &word, words.c_str(), "a word"}}}};
  const std::string some = help_text("", groups, false), all = help_text("", groups, true);
  EXPECT_THAT(some, AllOf(HasSubstr("--often N"), HasSubstr("--help-all"), Not(HasSubstr("--seldom")),
                          Not(HasSubstr("Rest"))));
  EXPECT_THAT(all, AllOf(HasSubstr("--often N"), HasSubstr("\nRest\n  --seldom N"),
                         HasSubstr("thirteen fourteen\n                            fifteen [1]\n"),
                         HasSubstr("cccc|\n                            dddddddddddddddddddd [aaaa]\n")));
  groups[0].fields[0].first_day = false;
  EXPECT_THAT(help_text("", groups, false),
              AllOf(HasSubstr("--often N"), HasSubstr("--seldom"), Not(HasSubstr("--help-all"))));
}

TEST(Fields, AnOptionalNumberIsNothingUntilItIsGiven) {
  std::optional<double> number;
  const std::vector<FieldGroup> groups = {{"All", {{"least", &number, "X", "the least", 0, 1}}}};
  const Field& field = groups[0].fields[0];
  EXPECT_EQ(show_value(field), "");
  EXPECT_EQ(check_value(field), "");
  EXPECT_EQ(config_text(groups), R"({"least":null})");
  EXPECT_THAT(help_text("", groups, true), HasSubstr("--least X                 the least\n"));
  EXPECT_EQ(set_from_text(field, "0"), "");
  EXPECT_EQ(number, 0.0);
  EXPECT_EQ(config_text(groups), R"({"least":0.0})");
  EXPECT_EQ(set_from_text(field, "none"), "must be a number");
  EXPECT_EQ(number, 0.0);
  EXPECT_EQ(set_from_text(field, "1.5"), "");
  EXPECT_EQ(show_value(field), "1.5");
  EXPECT_EQ(check_value(field), "must be from 0 to 1");
}

TEST(Fields, AnOptionalWholeNumberIsNothingUntilItIsGiven) {
  std::optional<int64_t> number;
  const std::vector<FieldGroup> groups = {{"All", {{"value", &number, "N", "how many", 0, 8}}}};
  const Field& field = groups[0].fields[0];
  EXPECT_EQ(config_text(groups), R"({"value":null})");
  EXPECT_EQ(set_from_text(field, "1.5"), "must be a whole number");
  EXPECT_EQ(number, std::nullopt);
  EXPECT_EQ(set_from_text(field, "9"), "");
  EXPECT_EQ(check_value(field), "must be from 0 to 8");
  const TemporaryFolder folder;
  google::protobuf::Int64Value message;
  std::vector<std::string> problems;
  read_config_file(folder.write("c.txtpb", "value: 7"), message, groups, problems);
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_EQ(number, 7);
  EXPECT_EQ(config_text(groups), R"({"value":7})");
}

}  // namespace
}  // namespace sherd
