// The model description: what it may say, and messages about everything that is wrong with it.
#include "layout/param_file.h"

#include <sherd/base/error.h>

#include "support/message_of.h"

namespace sherd::tools {
namespace {

std::vector<ParamEntry> parse(const std::string& text) { return parse_params(text, "model.json"); }

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
       {"'model.json': \"[0]\" is 1: an object is needed", "\"[1].unit\" is missing",
        "\"[1].shape\" is missing", "\"[2].shape[1]\" is -4: an integer from 0",
        "\"[2].dtype\" is \"fp31\": use bf16,", "\"[2].optimizer\" is \"sgd\": use adamw, muon",
        "\"[2].unit\" is \"\"", "\"[2].name\" is \"a\": [1] has this name, too",
        "\"[3].extra\" is 2: the key is unknown", "\"[3].tied\" is 1",
        "\"[3].shape\" is [3]: muon updates matrices", "\"[4].shape[0]\" is 4.5", "\"[4].dtype\" is 7"})
    EXPECT_THAT(message, HasSubstr(part));
}

TEST(ParamFile, AKeyThatAppearsTwiceIsRefused) {
  const std::string entry =
      R"({"name": "a", "shape": [2], "dtype": "f32", "optimizer": "adamw", "unit": "u")";
  EXPECT_THAT(refusal("[" + entry + "}, " + entry + R"(, "shape": [3], "shape": [2]}, 7])"),
              HasSubstr("an object \"[1]\" in which the key \"shape\" appears twice"));
  EXPECT_THAT(refusal("[[], 3, {}, {\"a\": [1, {\"b\": {\"unit\": \"u\", \"unit\": 1}}]}]"),
              HasSubstr("an object \"[3].a[1].b\" in which the key \"unit\" appears twice"));
}

TEST(ParamFile, BlocksAddUpToTheRowsOfAMatrix) {
  EXPECT_EQ(parse(with(R"(, "blocks": [1, 2, 3])"))[0].blocks.size(), 3u);
  EXPECT_THAT(refusal(with(R"(, "blocks": [1, 2])")), HasSubstr("is [1,2]: they add up to 3 of the 6 rows"));
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
  EXPECT_THAT(refusal("[" + sized("18446744073709551615") + "]"),
              HasSubstr("shape[0]\" is 18446744073709551615"));
  EXPECT_THAT(refusal("[" + sized("9223372036854775807") + "," + sized("9223372036854775807, 1") + "]"),
              HasSubstr("\"[1].shape\" is [9223372036854775807,1]: with those before it"));
}

TEST(ParamFile, OtherFilesAreRefused) {
  EXPECT_THAT(refusal(""), AllOf(HasSubstr("not valid JSON"), HasSubstr("write a list of objects")));
  EXPECT_THAT(refusal("[{"), HasSubstr("line 1, column"));
  EXPECT_THAT(refusal("\xff"), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("[]"), HasSubstr("it is []: a list that is not empty is needed"));
  EXPECT_THAT(refusal("{}"), HasSubstr("it is {}: a list"));
  EXPECT_THAT(refusal("null"), HasSubstr("a list that is not empty is needed"));
}

TEST(ParamFile, HostileInputIsCheap) {
  EXPECT_THAT(refusal(std::string(1 << 20, '[')), HasSubstr("nested more than 64 deep"));
  std::string objects;
  for (int i = 0; i < 10000; ++i) objects += "{\"a\":";
  EXPECT_THAT(refusal(objects), HasSubstr("nested more than 64 deep"));
  const std::string name(1 << 20, 'n');
  const std::string message = refusal(R"([{"name": ")" + name + "\"}, {\"name\": \"\\u001b[2J\"}]");
  EXPECT_LT(message.size(), 2000u);
  EXPECT_THAT(message, Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace sherd::tools
