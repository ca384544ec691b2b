// Settings out of a checkpoint's manifest.
#include <sherd/train/settings/saved_settings.h>

#include <optional>
#include <string>
#include <vector>

#include <sherd/base/error.h>

#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd {
namespace {

struct RunSettings {
  std::string text = "a";
  int64_t steps = 4;
  uint64_t seed = 1;
  double lr = 0.5;
  std::optional<double> least;
  bool quiet = false;
};

std::vector<FieldGroup> fields_of(RunSettings& s) {
  return {{"All",
           {{"text", &s.text, "a|b", "words"},
            {"steps", &s.steps, "N", "", 0, 10},
            {"seed", &s.seed, "N", ""},
            {"lr", &s.lr, "X", "", 0, 1},
            {"least", &s.least, "X", "", 0, 1},
            {"quiet", &s.quiet, "", ""}}}};
}

SavedTraining saved_with(const std::string& config) {
  return {"run/step_00000002", {.step = 2, .info = {{"config", config}}}};
}

// No tensors: only what the manifest says of training matters here.
void write_checkpoint(const TemporaryFolder& folder, const std::string& name, uint64_t sequence,
                      const std::string& config) {
  Manifest manifest;
  manifest.sequence = sequence;
  manifest.training = {.step = static_cast<int64_t>(sequence), .info = {{"config", config}}};
  folder.write(name + "/manifest.binpb", encode_manifest(manifest));
}

TEST(SavedSettings, ValuesOfEveryTypeComeBackBitForBit) {
  RunSettings before{.text = "b",
                     .steps = 9,
                     .seed = 18446744073709551615u,
                     .lr = 0.1234567890123456789,
                     .least = 0.1,
                     .quiet = true};
  RunSettings after;
  const std::vector<FieldGroup> fields = fields_of(after);
  std::vector<std::string> problems;
  const std::string_view names[] = {"quiet", "text", "steps", "seed", "lr", "least", "unknown"};
  EXPECT_THAT(take_saved_settings(saved_with(config_text(fields_of(before))), fields, names, problems),
              ElementsAre("text", "steps", "seed", "lr", "least", "quiet"));
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_EQ(config_text(fields), config_text(fields_of(before)));
  EXPECT_EQ(after.lr, before.lr);
  before = {};
  take_saved_settings(saved_with(config_text(fields_of(before))), fields, names, problems);
  EXPECT_EQ(after.least, std::nullopt);
}

TEST(SavedSettings, BytesOfATextThatIsNotUtf8ComeBack) {
  struct Paths {
    std::string data, save;
  };
  const auto fields_of_paths = [](Paths& p) {
    return std::vector<FieldGroup>{{"All", {{"data", &p.data, "PATH", ""}, {"save", &p.save, "PATH", ""}}}};
  };
  Paths before{.data = "d\xff\xe9ta", .save = "s\xc3\xa4ve"}, after;
  const std::string config = config_text(fields_of_paths(before));
  EXPECT_EQ(
      config,
      "{\"data\":\"d\xef\xbf\xbd\xef\xbf\xbdta\",\"data_hex\":\"64ffe97461\",\"save\":\"s\xc3\xa4ve\"}");
  std::vector<std::string> problems;
  const std::string_view names[] = {"data", "save"};
  take_saved_settings(saved_with(config), fields_of_paths(after), names, problems);
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_EQ(after.data, before.data);
  EXPECT_EQ(after.save, before.save);
  // Of an earlier version, or no hexadecimal.
  for (const char* hex : {"", R"(, "data_hex": "6")", R"(, "data_hex": "6g")", R"(, "data_hex": 64)"}) {
    take_saved_settings(saved_with(R"({"data": "text")" + std::string(hex) + "}"), fields_of_paths(after),
                        names, problems);
    EXPECT_EQ(after.data, "text") << hex;
  }
}

TEST(SavedSettings, WhatIsNotAskedForOrNotKnownStays) {
  RunSettings s;
  const std::vector<FieldGroup> fields = fields_of(s);
  std::vector<std::string> problems;
  const std::string_view names[] = {"lr", "least"};
  EXPECT_THAT(
      take_saved_settings(saved_with(R"({"lr": 1, "steps": 9, "later": [1]})"), fields, names, problems),
      ElementsAre("lr"));
  EXPECT_EQ(s.lr, 1);
  EXPECT_EQ(s.steps, 4);
  for (const char* config : {"", "{}"})
    EXPECT_THAT(take_saved_settings(saved_with(config), fields, names, problems), IsEmpty()) << config;
  EXPECT_THAT(take_saved_settings({"of another program", {}}, fields, names, problems), IsEmpty());
  EXPECT_THAT(problems, IsEmpty());
}

TEST(SavedSettings, ATextThatIsNotAnObjectIsOneErrorWithTheCheckpointAndARemedy) {
  RunSettings s;
  const std::vector<FieldGroup> fields = fields_of(s);
  const std::string_view names[] = {"lr", "least"};
  for (const char* config :
       {"no JSON", "[1]", "{\"lr\": 1", "{\"lr\": 1, \"lr\": 0}", "{\"lr\": \"\x1b\xff\"}"}) {
    std::vector<std::string> problems;
    EXPECT_THAT(take_saved_settings(saved_with(config), fields, names, problems), IsEmpty()) << config;
    EXPECT_THAT(problems, ElementsAre(AllOf(HasSubstr("run/step_00000002, its settings': it "),
                                            HasSubstr("resume another checkpoint"))))
        << config;
  }
  EXPECT_EQ(s.lr, RunSettings().lr);
}

// Dumping such a value into a message once took a stack frame for each level.
TEST(SavedSettings, DeepAndLongValuesMakeShortLines) {
  RunSettings s;
  const std::vector<FieldGroup> fields = fields_of(s);
  std::vector<std::string> problems;
  const std::string_view names[] = {"steps", "lr"};
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  EXPECT_THAT(take_saved_settings(saved_with("{\"steps\":" + deep + "}"), fields, names, problems),
              IsEmpty());
  EXPECT_THAT(problems, ElementsAre(HasSubstr("deep")));
  EXPECT_LT(problems[0].size(), 300u);
  problems.clear();
  std::string wide = "[";
  for (int i = 0; i < 100'000; ++i) wide += "{},";
  take_saved_settings(saved_with("{\"steps\":" + wide + R"(0],"lr":"a\u001b[2J"})"), fields, names, problems);
  EXPECT_THAT(problems, ElementsAre(HasSubstr("--steps [{},{},"), HasSubstr(R"(--lr "a\u001b[2J")")));
  for (const std::string& line : problems) EXPECT_LT(line.size(), 300u);
}

TEST(SavedSettings, ValuesThatCannotBeAreNamed) {
  RunSettings s;
  const std::vector<FieldGroup> fields = fields_of(s);
  std::vector<std::string> problems;
  const std::string_view names[] = {"text", "steps", "lr", "seed", "least", "quiet"};
  EXPECT_THAT(
      take_saved_settings(
          saved_with(R"({"text": "c", "steps": 11, "lr": "fast", "seed": -1, "least": 2, "quiet": "yes"})"),
          fields, names, problems),
      IsEmpty());
  EXPECT_THAT(
      problems,
      ElementsAre(AllOf(HasSubstr("run/step_00000002"), HasSubstr("--text \"c\": must be one of a|b")),
                  HasSubstr("--steps 11: must be from 0 to 10"), HasSubstr("--seed -1"),
                  HasSubstr("--lr \"fast\""), HasSubstr("--least 2"), HasSubstr("--quiet \"yes\"")));
  EXPECT_EQ(config_text(fields), config_text([] {
              static RunSettings standard;
              return fields_of(standard);
            }()));
}

TEST(SavedTraining, IsThatOfTheNewestSoundCheckpoint) {
  const TemporaryFolder folder;
  write_checkpoint(folder, "step_00000002", 1, "first");
  write_checkpoint(folder, "step_00000004", 2, "second");
  EXPECT_EQ(saved_training(folder.path()).training.info.at("config"), "second");
  EXPECT_EQ(saved_training(folder / "step_00000002").training.info.at("config"), "first");
  EXPECT_EQ(saved_training(folder / "step_00000002/").checkpoint, folder / "step_00000002");
  EXPECT_EQ(saved_training(folder / "step_00000002/manifest.binpb").training.info.at("config"), "first");
  std::string torn = read_bytes(folder / "step_00000004/manifest.binpb");
  torn.back() = static_cast<char>(torn.back() ^ 1);
  folder.write("step_00000004/manifest.binpb", torn);
  EXPECT_EQ(saved_training(folder.path()).training.info.at("config"), "first");
  EXPECT_THROW((void)saved_training(folder / "step_00000004"), CorruptCheckpoint);
}

TEST(SavedTraining, WithoutACheckpointTheErrorNamesThePath) {
  const TemporaryFolder folder;
  for (const std::string& path : {folder.path().string(), folder / "missing", folder.write("file", "")})
    EXPECT_THAT(message_of<IoError>([&] { (void)saved_training(path); }), HasSubstr(path));
  EXPECT_THROW((void)saved_training(folder / "step_00000001"), Error);
}

}  // namespace
}  // namespace sherd
