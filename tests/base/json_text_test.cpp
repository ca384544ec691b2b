// JSON that other programs wrote: limits, values in messages, and objects read with checks.
#include <sherd/base/detail/json_text.h>

#include <sherd/base/detail/json_object.h>

#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd {
namespace {

using nlohmann::json;

std::string refusal(const std::string& text) {
  return message_of<JsonError>([&] { read_json(text); });
}

TEST(JsonText, HasLimits) {
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_EQ(read_json(nested(64)).size(), 1u);
  EXPECT_EQ(refusal(nested(65)), "is nested more than 64 deep");
  EXPECT_EQ(refusal(std::string(10'000'000, '[')), "is nested more than 64 deep");
  EXPECT_THAT(refusal(R"({"a":{"b":1,"b":2}})"),
              HasSubstr("an object \"a\" in which the key \"b\" appears twice"));
  EXPECT_EQ(refusal(std::string("1\0", 2)), "holds a zero byte");
  EXPECT_THAT(refusal("{\x1b[2J"), HasSubstr("is not valid JSON"));
  EXPECT_EQ(refusal("{\x1b[2J").find('\x1b'), std::string::npos);
  EXPECT_EQ(message_of<JsonError>([] { read_json("[1,{},[2]]", 4); }), "has more than 4 values");
  EXPECT_EQ(read_json("[1,{},[2]]", 5).size(), 3u);
  EXPECT_EQ(read_json_or_null("{"), nullptr);
}

TEST(JsonText, ShowsTheBeginningOfAValueAlone) {
  EXPECT_EQ(shown_value(json::parse(R"({"a":[1,"x\u001b",null],"b":{}})")),
            R"({"a":[1,"x\u001b",null],"b":{}})");
  json deep = 1;
  for (int i = 0; i < 100'000; ++i) deep = json::array({std::move(deep)});
  EXPECT_EQ(shown_value(deep, 20), std::string(20, '[') + "...");
  EXPECT_LT(shown_value(json(std::string(10'000'000, 'x'))).size(), 90u);
  EXPECT_LT(shown_value(json::array_t(1'000'000, json::object())).size(), 90u);
}

TEST(JsonObjects, GiveValuesWithinTheirBounds) {
  JsonObject o = JsonObject::parse(
      R"({"i": 3, "x": 2.5, "b": true, "s": "", "none": null, "l": [1, 2], "in": {"t": ["a"]}})", "a.json");
  EXPECT_EQ(o.integer("i", std::nullopt, 0, 3), 3);
  EXPECT_EQ(o.number("x", 1, 0, 3), 2.5);
  EXPECT_EQ(o.number("none", 1, 0, 3), 1);
  EXPECT_TRUE(o.flag("b", false));
  EXPECT_EQ(o.text("s", "other"), "");
  EXPECT_THAT(o.integers("l", 1, 2, 2), ElementsAre(1, 2));
  EXPECT_THAT(o.integers("absent", 1, 2), IsEmpty());
  EXPECT_THAT(o.object("in").texts("t"), ElementsAre("a"));
  EXPECT_THAT(o.object("in").keys(), ElementsAre("t"));
  EXPECT_TRUE(o.contains("none") && !o.has("none"));
  o.refuse_others();
  o.require_none();
}

TEST(JsonObjects, NameFilePathAndValueOfEveryError) {
  JsonObject o = JsonObject::parse(
      R"({"n": 1e300, "big": 18446744073709551615, "half": 0.5, "inner": {"list": [1, -1, -2]}, "k\u001b": 0,
          "rows": [{"x": "a"}, 7]})",
      "a.json", "write it again");
  EXPECT_EQ(o.integer("n", std::nullopt, 2, 9), 2) << "a value that can be used";
  EXPECT_EQ(o.integer("big", 5, 0, std::numeric_limits<int64_t>::max()), 5);
  o.integer("half", 0, 0, 9);
  EXPECT_THAT(o.object("inner").integers("list", 0, 9), IsEmpty());
  EXPECT_TRUE(o.object("inner").refused("list"));
  o.object("inner").integers("list", 0, 9);
  o.each("rows", 3, [](JsonObject&) { FAIL(); });
  o.name("absent");
  o.refuse_others();
  EXPECT_EQ(
      message_of<InvalidArgument>([&] { o.require_none(); }),
      "'a.json': \"n\" is 1e+300: an integer from 2 to 9 is needed; \"big\" is 18446744073709551615: an "
      "integer from 0 to 9223372036854775807 is needed; \"half\" is 0.5: an integer from 0 to 9 is needed; "
      "\"inner.list[1]\" is -1: an integer from 0 to 9 is needed; \"rows\" is [{\"x\":\"a\"},7]: a list that "
      "is "
      "not empty is needed; \"absent\" is missing: a string is needed; \"k\\u001b\" is 0: the key is "
      "unknown; "
      "the keys are absent, big, half, inner, n, rows; write it again");
}

TEST(JsonObjects, StopAtAFullMessage) {
  std::string text = "[7";
  for (int i = 0; i < 100'000; ++i) text += ",{}";
  JsonObject list = JsonObject::parse_list(text + "]", "a.json", "write a list");
  int seen = 0;
  const std::string message =
      message_of<InvalidArgument>([&] { list.each("", 1, [&](JsonObject& o) { o.name("x"), ++seen; }); });
  EXPECT_EQ(seen, 18);
  EXPECT_THAT(message, AllOf(HasSubstr("\"[0]\" is 7: an object is needed; \"[1].x\" is missing"),
                             HasSubstr("\"[19].x\""), HasSubstr("there may be more; write a list")));
}

TEST(JsonObjects, TextsComeFromFilesThatCanBeRead) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_text(folder.write("a.json", "{}"), ""), "{}");
  EXPECT_EQ(read_text(folder.write("empty.json", ""), ""), "");
  EXPECT_THAT(message_of<IoError>([&] { read_text(folder / "none.json", "name a file"); }),
              AllOf(HasSubstr("none.json': cannot be read (No such file"), HasSubstr("; name a file")));
  EXPECT_THAT(message_of<IoError>([&] { read_text(folder.path().string(), ""); }), HasSubstr("is a folder"));
}

}  // namespace
}  // namespace sherd
