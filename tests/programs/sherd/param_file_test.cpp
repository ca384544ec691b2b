// The model description: what it may say, and messages about everything that is wrong with it.
#include "layout/param_file.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sherd/base/error.h>

#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<ParamEntry> parse(const std::string& text) {
  std::istringstream in(text);
  return parse_params(in, "model.json");
}

std::string refusal(const std::string& text) {
  return message_of<InvalidArgument>([&] { parse(text); });
}

std::string with(const std::string& fields) {
  return R"([{"name": "w", "shape": [6, 4], "dtype": "f32", "optimizer": "muon", "unit": "u")" + fields +
         "}]";
}

TEST(ParamFile, ReadsEveryField) {
  const auto params = parse(R"([
    {"name": "a", "shape": [6, 4], "dtype": "bfloat16", "optimizer": "muon", "unit": "u", "blocks": [2, 4]},
    {"name": "b", "shape": [], "dtype": "fp16", "optimizer": "adamw", "unit": "v", "tied": true}])");
  ASSERT_EQ(params.size(), 2u);
  EXPECT_EQ(params[0].shape, (Shape{6, 4}));
  EXPECT_EQ(params[0].dtype, DType::bf16);
  EXPECT_EQ(params[0].optimizer, Algorithm::muon);
  EXPECT_EQ(params[0].unit, "u");
  EXPECT_FALSE(params[0].tied);
  EXPECT_EQ(params[0].blocks, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(params[1].shape, Shape{});
  EXPECT_EQ(params[1].dtype, DType::f16);
  EXPECT_TRUE(params[1].tied);
}

TEST(ParamFile, NamesEveryOffenderInOneMessage) {
  const std::string message = refusal(R"([
    1,
    {"name": "a"},
    {"name": "a", "shape": [3, -4], "dtype": "fp31", "optimizer": "sgd", "unit": ""},
    {"name": "v", "shape": [3], "dtype": "f32", "optimizer": "muon", "unit": "u", "tied": 1, "extra": 2},
    {"name": "k", "shape": [4.5, 4], "dtype": 7, "optimizer": "adamw", "unit": "u"}])");
  for (const char* part :
       {"model.json: 15 problems", "entry 0: is 1", "entry 1 \"a\": \"unit\" is missing",
        "entry 1 \"a\": \"shape\" is missing", "entry 2 \"a\": \"shape\" has -4",
        "dtype \"fp31\" is unknown; use", "optimizer \"sgd\" is unknown; use muon or adamw",
        "\"unit\" is \"\"", "entry 2 \"a\": entry 1 has this name, too",
        "entry 3 \"v\": unknown field \"extra\"", "\"tied\" is 1", "shape [3] goes to muon",
        "\"shape\" has 4.5", "\"dtype\" is 7"})
    EXPECT_THAT(message, HasSubstr(part));
}

TEST(ParamFile, AKeyThatAppearsTwiceIsRefused) {
  const std::string entry =
      R"({"name": "a", "shape": [2], "dtype": "f32", "optimizer": "adamw", "unit": "u")";
  const std::string message =
      refusal("[" + entry + "}, " + entry + R"(, "shape": [3], "shape": [2]}, 7, {"unit": "u", "unit": 1}])");
  EXPECT_THAT(message, HasSubstr("entry 1: the key \"shape\" appears more than once; keep one"));
  EXPECT_THAT(message, HasSubstr("entry 3: the key \"unit\" appears more than once; keep one"));
  EXPECT_THAT(message, Not(HasSubstr("entry 0:")));
}

TEST(ParamFile, LongListsOfOffendersAreCut) {
  std::string text = "[0";
  for (int i = 1; i < 1000; ++i) text += ", 0";
  EXPECT_THAT(refusal(text + "]"), AllOf(HasSubstr("1000 problems"), HasSubstr("... and 980 more")));
}

TEST(ParamFile, BlocksAddUpToTheRowsOfAMatrix) {
  EXPECT_EQ(parse(with(R"(, "blocks": [1, 2, 3])"))[0].blocks.size(), 3u);
  EXPECT_THAT(refusal(with(R"(, "blocks": [1, 2])")), HasSubstr("[1, 2] add up to 3 of the 6 rows"));
  EXPECT_THAT(refusal(with(R"(, "blocks": [9223372036854775807, 9])")), HasSubstr("of the 6 rows"));
  EXPECT_THAT(refusal(R"([{"name": "n", "shape": [4], "dtype": "f32", "optimizer": "adamw", "unit": "u",
                           "blocks": [4]}])"),
              HasSubstr("only matrices have them"));
}

TEST(ParamFile, SizesThatOverflowAreRefused) {
  const auto sized = [](const std::string& shape) {
    return R"({"name": "w)" + std::to_string(shape.size()) + R"(", "shape": [)" + shape +
           R"(], "dtype": "f32", "optimizer": "adamw", "unit": "u"})";
  };
  EXPECT_THAT(refusal("[" + sized("4294967296, 4294967296") + "]"), HasSubstr("more than 2^63 - 1 elements"));
  EXPECT_THAT(refusal("[" + sized("0, 4294967296, 4294967296") + "]"),
              HasSubstr("more than 2^63 - 1 elements"));
  EXPECT_THAT(refusal("[" + sized("18446744073709551615") + "]"), HasSubstr("has 18446744073709551615"));
  EXPECT_THAT(refusal("[" + sized("9223372036854775807") + "," + sized("9223372036854775807, 1") + "]"),
              HasSubstr("there are more than 2^63 - 1"));
}

TEST(ParamFile, OtherFilesAreRefused) {
  EXPECT_THAT(refusal(""), HasSubstr("not JSON"));
  EXPECT_THAT(refusal("[{"), HasSubstr("line 1, column"));
  EXPECT_THAT(refusal("\xff"), HasSubstr("not JSON"));
  EXPECT_THAT(refusal("[]"), HasSubstr("the list is empty"));
  EXPECT_THAT(refusal("{}"), HasSubstr("the file holds {}"));
  EXPECT_THAT(refusal("null"), HasSubstr("the file holds null"));
}

TEST(ParamFile, HostileInputIsCheap) {
  EXPECT_THAT(refusal(std::string(1 << 20, '[')), HasSubstr("nested more than 3 deep"));
  std::string objects;
  for (int i = 0; i < 10000; ++i) objects += "{\"a\":";
  EXPECT_THAT(refusal(objects), HasSubstr("nested more than 3 deep"));
  const std::string name(1 << 20, 'n');
  const std::string message = refusal(R"([{"name": ")" + name + "\"}, {\"name\": \"\\u001b[2J\"}]");
  EXPECT_LT(message.size(), 2000u);
  EXPECT_THAT(message, Not(HasSubstr("\x1b")));
}

TEST(ParamFile, FilesThatCannotBeReadAreNamed) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<IoError>([&] { read_params(folder / "none.json"); }),
              HasSubstr("none.json: cannot be read"));
  EXPECT_THAT(message_of<IoError>([&] { read_params(folder.path().string()); }), HasSubstr("is a folder"));
}

}  // namespace
}  // namespace sherd::tools
